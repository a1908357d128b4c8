//! The text form, with the words of ibv_devinfo(1).

use super::listing::Device;

/// One device.
pub(super) fn lines(device: &Device, verbose: bool) -> Vec<String> {
    let port = &device.port;
    let mut lines = vec![
        format!("device: {}", device.name),
        field(1, "transport", device.transport),
        field(1, "node_guid", &device.guid),
        field(
            1,
            "interface",
            format_args!(
                "{} ({}{})",
                device.interface,
                device.ifindex,
                if device.is_loopback { ", loopback" } else { "" }
            ),
        ),
    ];
    if verbose {
        for (name, value) in &device.limits {
            lines.push(field(1, name, value));
        }
        lines.push(field(1, "atomic_cap", device.atomic));
        lines.push(field(1, "capabilities", device.capabilities.join(" ")));
    }
    lines.extend([
        field(1, "port", port.number),
        field(2, "state", port.state),
        field(2, "link_layer", port.link_layer),
        field(
            2,
            "active_mtu",
            format_args!("{} (interface: {})", port.active_mtu, port.netdev_mtu),
        ),
        field(2, "max_mtu", port.max_mtu),
    ]);
    if verbose {
        for entry in &device.gids {
            let name = format!("GID[{:3}]", entry.index);
            let (gid, kind) = (&entry.gid, entry.r#type);
            let value = format!("{gid}, {kind}, {}", entry.address);
            lines.push(field(2, &name, value));
        }
        for (name, value) in &device.statistics {
            lines.push(field(2, name, value));
        }
    } else {
        let addresses: Vec<String> = device
            .gids
            .iter()
            .map(|entry| entry.address.to_string())
            .collect();
        lines.push(field(2, "addresses", addresses.join(" ")));
    }
    lines
}

fn field(depth: usize, name: &str, value: impl std::fmt::Display) -> String {
    let indent = 4 * depth;
    let width = NAME_WIDTH - indent;
    format!("{:indent$}{:width$} {value}", "", format!("{name}:"))
}

/// The longest name has 26 characters.
const NAME_WIDTH: usize = 36;
