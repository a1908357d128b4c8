//! The layouts, judged from outside: a C compiler measures `<rdma/rdma_user_cm.h>` and ours must agree, size by size and
//! offset by offset. Without a compiler or the headers the test says so on standard error and counts as not run.

use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};
use std::process::Command;

use oarlock_ucm::abi::*;

/// What is measured: the C expression's name, and our value.
struct Probe {
    program: String,
    ours: BTreeMap<String, usize>,
}

impl Probe {
    fn new() -> Self {
        let program = "#include <stddef.h>\n#include <stdio.h>\n#include <rdma/rdma_user_cm.h>\nint main(void) {\n".into();
        Self {
            program,
            ours: BTreeMap::new(),
        }
    }

    fn size(&mut self, name: &str, c_type: &str, ours: usize) {
        self.measure(name.to_string(), &format!("sizeof({c_type})"), ours);
    }

    fn offset(&mut self, name: &str, c_type: &str, field: &str, ours: usize) {
        self.measure(
            format!("{name}.{field}"),
            &format!("offsetof({c_type}, {field})"),
            ours,
        );
    }

    fn measure(&mut self, name: String, expression: &str, ours: usize) {
        self.program.push_str(&format!(
            "  printf(\"{name}=%zu\\n\", (size_t){expression});\n"
        ));
        self.ours.insert(name, ours);
    }

    /// What the C compiler says; `Err` says why it cannot.
    fn run(&self) -> Result<BTreeMap<String, usize>, String> {
        let dir =
            tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
        let (source, binary) = (dir.path().join("probe.c"), dir.path().join("probe"));
        std::fs::write(&source, format!("{}  return 0;\n}}\n", self.program))
            .map_err(|error| error.to_string())?;
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let check = Command::new(&compiler)
            .args([
                "-fsyntax-only",
                "-include",
                "rdma/rdma_user_cm.h",
                "-x",
                "c",
                "/dev/null",
            ])
            .output()
            .map_err(|error| format!("no C compiler ({compiler}): {error}"))?;
        if !check.status.success() {
            return Err(format!("no usable <rdma/rdma_user_cm.h> for {compiler}"));
        }
        let built = Command::new(&compiler)
            .arg("-o")
            .arg(&binary)
            .arg(&source)
            .output()
            .expect("it ran just now");
        assert!(
            built.status.success(),
            "the probe does not compile:\n{}",
            String::from_utf8_lossy(&built.stderr)
        );
        let output = Command::new(&binary).output().expect("the probe runs");
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).expect("the probe prints names and numbers");
        let parse = |line: &str| {
            let (name, value) = line.split_once('=').expect("a name and a number");
            (name.to_string(), value.parse().expect("a number"))
        };
        Ok(text.lines().map(parse).collect())
    }
}

/// Our structure, the kernel's, and the fields, ours first where the names differ.
macro_rules! probe {
    ($probe:ident, $ours:ident, $c:literal, [$($field:ident $(= $c_field:literal)?),* $(,)?]) => {
        $probe.size(stringify!($ours), concat!("struct ", $c), size_of::<$ours>());
        $(
            let c_field = [$($c_field,)? stringify!($field)][0];
            $probe.offset(stringify!($ours), concat!("struct ", $c), c_field, offset_of!($ours, $field));
        )*
    };
}

fn known_to_every_header() -> Probe {
    let mut p = Probe::new();
    probe!(
        p,
        Header,
        "rdma_ucm_cmd_hdr",
        [cmd, in_len = "in", out_len = "out"]
    );
    probe!(
        p,
        CreateId,
        "rdma_ucm_create_id",
        [uid, response, ps, qp_type, reserved]
    );
    probe!(p, CreateIdResp, "rdma_ucm_create_id_resp", [id]);
    probe!(
        p,
        DestroyId,
        "rdma_ucm_destroy_id",
        [response, id, reserved]
    );
    probe!(
        p,
        DestroyIdResp,
        "rdma_ucm_destroy_id_resp",
        [events_reported]
    );
    probe!(p, BindIp, "rdma_ucm_bind_ip", [response, addr, id]);
    probe!(p, Bind, "rdma_ucm_bind", [id, addr_size, reserved, addr]);
    probe!(
        p,
        ResolveIp,
        "rdma_ucm_resolve_ip",
        [src_addr, dst_addr, id, timeout_ms]
    );
    probe!(
        p,
        ResolveAddr,
        "rdma_ucm_resolve_addr",
        [
            id, timeout_ms, src_size, dst_size, reserved, src_addr, dst_addr,
        ]
    );
    probe!(p, ResolveRoute, "rdma_ucm_resolve_route", [id, timeout_ms]);
    probe!(p, Query, "rdma_ucm_query", [response, id, option]);
    probe!(
        p,
        QueryRouteResp,
        "rdma_ucm_query_route_resp",
        [
            node_guid,
            ib_route,
            src_addr,
            dst_addr,
            num_paths,
            port_num,
            reserved,
            ibdev_index,
            reserved1,
        ]
    );
    probe!(
        p,
        QueryAddrResp,
        "rdma_ucm_query_addr_resp",
        [
            node_guid,
            port_num,
            reserved,
            pkey,
            src_size,
            dst_size,
            src_addr,
            dst_addr,
            ibdev_index,
            reserved1,
        ]
    );
    probe!(
        p,
        QueryPathResp,
        "rdma_ucm_query_path_resp",
        [num_paths, reserved]
    );
    probe!(
        p,
        IbPathRecData,
        "ib_path_rec_data",
        [flags, reserved, service_id = "path_rec"]
    );
    probe!(
        p,
        IbUserPathRec,
        "ib_user_path_rec",
        [
            dgid,
            sgid,
            dlid,
            slid,
            raw_traffic,
            flow_label,
            reversible,
            mtu,
            pkey,
            hop_limit,
            traffic_class,
            numb_path,
            sl,
            mtu_selector,
            rate_selector,
            rate,
            packet_life_time_selector,
            packet_life_time,
            preference,
        ]
    );
    probe!(
        p,
        ConnParam,
        "rdma_ucm_conn_param",
        [
            qp_num,
            qkey,
            private_data,
            private_data_len,
            srq,
            responder_resources,
            initiator_depth,
            flow_control,
            retry_count,
            rnr_retry_count,
            valid,
        ]
    );
    probe!(
        p,
        UdParam,
        "rdma_ucm_ud_param",
        [
            qp_num,
            qkey,
            ah_attr,
            private_data,
            private_data_len,
            reserved
        ]
    );
    probe!(p, Ece, "rdma_ucm_ece", [vendor_id, attr_mod]);
    probe!(
        p,
        Connect,
        "rdma_ucm_connect",
        [conn_param, id, reserved, ece]
    );
    probe!(p, Listen, "rdma_ucm_listen", [id, backlog]);
    probe!(
        p,
        Accept,
        "rdma_ucm_accept",
        [uid, conn_param, id, reserved, ece]
    );
    probe!(
        p,
        Reject,
        "rdma_ucm_reject",
        [id, private_data_len, reason, reserved, private_data]
    );
    probe!(p, Disconnect, "rdma_ucm_disconnect", [id]);
    probe!(
        p,
        InitQpAttr,
        "rdma_ucm_init_qp_attr",
        [response, id, qp_state]
    );
    probe!(p, Notify, "rdma_ucm_notify", [id, event]);
    probe!(
        p,
        JoinIpMcast,
        "rdma_ucm_join_ip_mcast",
        [response, uid, addr, id]
    );
    probe!(
        p,
        JoinMcast,
        "rdma_ucm_join_mcast",
        [response, uid, id, addr_size, join_flags, addr]
    );
    probe!(p, GetEvent, "rdma_ucm_get_event", [response]);
    probe!(
        p,
        EventResp,
        "rdma_ucm_event_resp",
        [uid, id, event, status, param, reserved, ece]
    );
    probe!(
        p,
        SetOption,
        "rdma_ucm_set_option",
        [optval, id, level, optname, optlen]
    );
    probe!(p, MigrateId, "rdma_ucm_migrate_id", [response, id, fd]);
    probe!(p, MigrateIdResp, "rdma_ucm_migrate_resp", [events_reported]);
    probe!(
        p,
        UverbsAhAttr,
        "ib_uverbs_ah_attr",
        [
            dgid = "grh.dgid",
            flow_label = "grh.flow_label",
            sgid_index = "grh.sgid_index",
            hop_limit = "grh.hop_limit",
            traffic_class = "grh.traffic_class",
            grh_reserved = "grh.reserved",
            dlid,
            sl,
            src_path_bits,
            static_rate,
            is_global,
            port_num,
            reserved,
        ]
    );
    probe!(
        p,
        UverbsQpAttr,
        "ib_uverbs_qp_attr",
        [
            qp_attr_mask,
            qp_state,
            cur_qp_state,
            path_mtu,
            path_mig_state,
            qkey,
            rq_psn,
            sq_psn,
            dest_qp_num,
            qp_access_flags,
            ah_attr,
            alt_ah_attr,
            max_send_wr,
            max_recv_wr,
            max_send_sge,
            max_recv_sge,
            max_inline_data,
            pkey_index,
            alt_pkey_index,
            en_sqd_async_notify,
            sq_draining,
            max_rd_atomic,
            max_dest_rd_atomic,
            min_rnr_timer,
            port_num,
            timeout,
            retry_cnt,
            rnr_retry,
            alt_port_num,
            alt_timeout,
            reserved,
        ]
    );
    probe!(
        p,
        SockaddrIn6,
        "sockaddr_in6",
        [
            family = "sin6_family",
            port = "sin6_port",
            flowinfo = "sin6_flowinfo",
            addr = "sin6_addr",
            scope_id = "sin6_scope_id",
        ]
    );
    p.size(
        "SockaddrStorage",
        "struct __kernel_sockaddr_storage",
        size_of::<SockaddrStorage>(),
    );
    p.size(
        "SockaddrStorage's alignment",
        "char[_Alignof(struct __kernel_sockaddr_storage)]",
        align_of::<SockaddrStorage>(),
    );
    for info in &COMMANDS[..23] {
        let name = format!("RDMA_USER_CM_CMD_{}", info.name);
        if info.command != oarlock_ucm::abi::Command::GET_OPTION {
            p.measure(name.clone(), &name, info.command.0 as usize);
        }
    }
    for (name, ours) in [
        ("RDMA_USER_CM_ABI_VERSION", ABI_VERSION),
        ("RDMA_USER_CM_QUERY_ADDR", query_option::ADDR),
        ("RDMA_USER_CM_QUERY_PATH", query_option::PATH),
        ("RDMA_USER_CM_QUERY_GID", query_option::GID),
        ("RDMA_OPTION_ID", option_level::ID),
        ("RDMA_OPTION_IB", option_level::IB),
        ("RDMA_OPTION_ID_TOS", option_id::TOS),
        ("RDMA_OPTION_ID_REUSEADDR", option_id::REUSEADDR),
        ("RDMA_OPTION_ID_AFONLY", option_id::AFONLY),
        ("RDMA_OPTION_ID_ACK_TIMEOUT", option_id::ACK_TIMEOUT),
        ("RDMA_OPTION_IB_PATH", option_ib::PATH),
        (
            "RDMA_MC_JOIN_FLAG_FULLMEMBER",
            join_flag::FULL_MEMBER.into(),
        ),
        (
            "RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER",
            join_flag::SEND_ONLY_FULL_MEMBER.into(),
        ),
    ] {
        p.measure(name.into(), name, ours as usize);
    }
    p
}

/// R-MIG-5 (command 18 and its answer) and the other 24 commands. Public fault 70: no structure has a hole, since
/// what pads it is a field.
#[test]
fn sizes_and_offsets_are_those_of_the_c_header() {
    let probe = known_to_every_header();
    if let Some(theirs) = judge(&probe, "sizes_and_offsets_are_those_of_the_c_header") {
        assert_eq!(theirs, probe.ours);
    }
}

/// What the C compiler says, or `None` with a line that says why the test is not run.
fn judge(probe: &Probe, test: &str) -> Option<BTreeMap<String, usize>> {
    match probe.run() {
        Ok(theirs) => Some(theirs),
        Err(reason) => {
            oarlock_sim::not_run("programs", format_args!("{test}: {reason}"));
            None
        }
    }
}

/// A test of the judge: one field moved by a byte, and it must see it.
#[test]
fn the_c_compiler_sees_a_field_that_moved() {
    let mut probe = known_to_every_header();
    let moved = probe.ours.get_mut("MigrateId.fd").expect("it is measured");
    *moved += 1;
    if let Some(theirs) = judge(&probe, "the_c_compiler_sees_a_field_that_moved") {
        let differing: Vec<_> = theirs
            .iter()
            .filter(|(name, value)| probe.ours.get(*name) != Some(value))
            .collect();
        assert_eq!(differing, [(&"MigrateId.fd".to_string(), &12)]);
    }
}
