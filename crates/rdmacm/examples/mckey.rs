//! Datagrams to a multicast group: every member joins, one sends, the others receive.
//!
//! Speaks with the `mckey` of the rdmacm-utils, on either side, and takes the same options:
//!
//! ```text
//! mckey -m GROUP [-s] [-o] [-b ADDRESS] [-c MEMBERS] [-C MESSAGES] [-S BYTES] [-p udp|ipoib]
//! mckey --private          [-c MEMBERS] [-C MESSAGES] [-S BYTES] [-p udp|ipoib]
//! ```
//!
//! `-s` sends, `-o` joins to send only. `--private` runs a receiver and a sender on two hosts in this process, without a
//! network.

use oarlock_rdmacm::{Host, Identifier, JoinKind, Multicast, PortSpace, UdParam};
use oarlock_verbs::{Buffer, CompletionQueue, GRH_LEN, QpInitAttr, QpType, QueuePair, SendRequest};
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long one step may take, but for the wait for the first message.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(crate) struct Options {
    group: Option<IpAddr>,
    bind: Option<IpAddr>,
    private: bool,
    sends: bool,
    send_only: bool,
    members: usize,
    messages: usize,
    bytes: usize,
    port_space: PortSpace,
}

impl Options {
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut options = Self {
            group: None,
            bind: None,
            private: false,
            sends: false,
            send_only: false,
            members: 1,
            messages: 10,
            bytes: 100,
            port_space: PortSpace::UDP,
        };
        let mut arguments = arguments.skip(1);
        while let Some(option) = arguments.next() {
            match option.as_str() {
                "--private" => options.private = true,
                "-s" => options.sends = true,
                "-o" => options.send_only = true,
                "-m" | "-b" | "-c" | "-C" | "-S" | "-p" => {
                    let value = arguments
                        .next()
                        .ok_or_else(|| format!("{option} wants a value"))?;
                    options.set(&option, &value)?;
                }
                _ => return Err(format!("no option {option}").into()),
            }
        }
        if options.group.is_none() && !options.private {
            return Err("-m GROUP: the group to join".into());
        }
        Ok(options)
    }

    fn set(&mut self, option: &str, value: &str) -> Result<(), Box<dyn Error>> {
        match option {
            "-m" => self.group = Some(value.parse()?),
            "-b" => self.bind = Some(value.parse()?),
            "-c" => self.members = value.parse()?,
            "-C" => self.messages = value.parse()?,
            "-S" => self.bytes = value.parse()?,
            _ => {
                self.port_space = match value {
                    "udp" | "0x0111" => PortSpace::UDP,
                    "ipoib" | "0x0002" => PortSpace::IPOIB,
                    _ => return Err(format!("no port space {value}: udp or ipoib").into()),
                }
            }
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    let outcome = Options::parse(std::env::args()).and_then(|options| run(&options));
    let status = match outcome {
        Ok(()) => {
            println!("test complete");
            0
        }
        Err(error) => {
            eprintln!("mckey: {error}");
            1
        }
    };
    println!("return status {status}");
    ExitCode::from(status)
}

pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    if !options.private {
        let members = join(&Host::open()?, options)?;
        if options.sends {
            // Switches and other hosts learn of a new member in their own time.
            std::thread::sleep(Duration::from_secs(3));
        }
        return transfer(&members, options);
    }
    let wire = oarlock_hostd::MemWire::new();
    let on = |last: u8| -> Result<(Host, Options), Box<dyn Error>> {
        let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
        let options = Options {
            group: Some(options.group.unwrap_or(Ipv4Addr::new(239, 1, 2, 3).into())),
            bind: Some(address),
            ..options.clone()
        };
        Ok((Host::private_on(&wire, &[address])?, options))
    };
    let (receiving_host, receiver) = on(1)?;
    let (sending_host, sender) = on(2)?;
    let sender = Options {
        sends: true,
        send_only: true,
        ..sender
    };
    let receivers = join(&receiving_host, &receiver)?;
    let senders = join(&sending_host, &sender)?;
    transfer(&senders, &sender)?;
    // Every member here gets what each of the members there has sent.
    let all = Options {
        messages: receiver.messages * senders.len(),
        ..receiver
    };
    transfer(&receivers, &all)
}

/// One member: an identifier with its queue pair, in the group.
struct Member {
    queue_pair: QueuePair,
    cq: CompletionQueue,
    group: UdParam,
    /// A member as long as it lives.
    _membership: Multicast,
}

fn join(host: &Host, options: &Options) -> Result<Vec<Member>, Box<dyn Error>> {
    let group = SocketAddr::new(options.group.ok_or("no group")?, 0);
    let source = options.bind.map(|address| SocketAddr::new(address, 0));
    (0..options.members)
        .map(|_| {
            let id = Identifier::synchronous(host, options.port_space)?;
            id.set_deadline(Some(Instant::now() + PATIENCE));
            id.resolve_addr(source, group, PATIENCE)?;
            member(&id, group, options)
        })
        .collect()
}

fn member(id: &Identifier, group: SocketAddr, options: &Options) -> Result<Member, Box<dyn Error>> {
    let device = id.device()?;
    let max = device
        .device()
        .max_path_mtu()
        .bytes()
        .map_or(0, usize::from);
    if options.bytes > max {
        return Err(format!("{} bytes are more than one packet of {max}", options.bytes).into());
    }
    let pd = device.default_pd();
    // Several members of a sender may send to each of a receiver.
    let depth = u32::try_from(options.messages * options.members)?.max(1);
    let cq = CompletionQueue::new(&device, 2 * depth)?;
    let init = QpInitAttr {
        qp_type: QpType::Ud,
        max_send_wr: depth,
        max_recv_wr: depth,
        ..QpInitAttr::default()
    };
    let queue_pair = id.create_qp(&pd, &cq, &cq, init)?;
    if !options.sends {
        for number in 0..depth {
            queue_pair.post_recv(number.into(), Buffer::new(&pd, GRH_LEN + options.bytes)?)?;
        }
    }
    let kind = if options.send_only {
        JoinKind::SendOnlyFullMember
    } else {
        JoinKind::FullMember
    };
    let membership = id.join_multicast(group, kind)?;
    let group = membership
        .param()
        .ok_or("a group that was joined has an address")?;
    println!("mckey: joined {}", group.address.remote);
    Ok(Member {
        queue_pair,
        cq,
        group,
        _membership: membership,
    })
}

fn transfer(members: &[Member], options: &Options) -> Result<(), Box<dyn Error>> {
    if options.sends {
        println!("initiating data transfers");
        for member in members {
            member.send(options)?;
        }
    } else {
        println!("receiving data transfers");
    }
    for member in members {
        member.wait(options.messages)?;
    }
    println!("data transfers complete");
    Ok(())
}

impl Member {
    fn send(&self, options: &Options) -> Result<(), Box<dyn Error>> {
        let handle = self.group.address_handle(self.queue_pair.pd())?;
        for number in 0..options.messages {
            let message = Buffer::new(self.queue_pair.pd(), options.bytes)?;
            let request = SendRequest::new(number as u64, message)
                .imm(self.queue_pair.qpn().get())
                .to(&handle, self.group.qpn, self.group.qkey);
            self.queue_pair.post_send(request)?;
        }
        Ok(())
    }

    /// Waits for so many messages to be sent, or received; the first of them may take its time.
    fn wait(&self, messages: usize) -> Result<(), Box<dyn Error>> {
        let mut done = 0;
        while done < messages {
            let mut completions = Vec::new();
            let patience = (done > 0).then_some(PATIENCE);
            if self.cq.wait(&mut completions, patience)? == 0 {
                return Err(format!("{done} of {messages} messages have come").into());
            }
            for completion in completions {
                completion.ok()?;
                done += 1;
            }
        }
        Ok(())
    }
}
