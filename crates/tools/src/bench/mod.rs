//! `oarlock bench`: bandwidth, latency and cost of one operation between two processes, in the manner of perftest.
//!
//! The sides talk over a TCP connection of their own ([`control`]) and connect their queue pairs by hand, as perftest does by
//! default, so that all three transport services are alike. Every message is made and compared ([`pattern`]) unless it is asked not to; that
//! is part of the time that is measured.

mod client;
mod control;
mod histogram;
mod lanes;
mod meter;
mod pattern;
mod pingpong;
mod pingwrite;
mod plan;
mod remote;
mod report;
mod server;
mod socket;

use crate::failure::{Failure, system};
use crate::report::{Lines, print_json};
use crate::signals::Ending;
use clap::{ArgGroup, Args};
use control::{Control, End, Message, PATIENCE, foreign};
use lanes::Lanes;
use oarlock_hostd::Host;
use plan::{Atomic, Mode, Op, Path, Plan, Transport};
use report::{Active, Outcome, Passive, Results};
use socket::Sockets;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Options of `oarlock bench`.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    group(ArgGroup::new("side").args(["server", "address", "local"]).required(true)),
    after_help = "Examples:\n  oarlock bench send --local                                both sides, as two processes of this machine\n  oarlock bench write --local --size 1048576 --mode event\n  oarlock bench send --local --lat --size 64                one message after the other: half round trips\n  oarlock bench send --local --path tcp                     the same by TCP sockets\n  oarlock bench --server                                    serves one client, elsewhere too, and ends; its client:\n  oarlock bench read 192.0.2.7 --size 65536 --qps 4 --seconds 10 --json\n\nMessages are filled with words that follow from their number and position, and compared on arrival (send, read, --lat), or in memory at the end (write, atomic); that is included in what is measured, and --no-check leaves it out. Of reliable services a message counts when it is acknowledged; of the others, and of TCP, when it has arrived. The time is that after a warm-up of a tenth.\nlat_us: with --lat, send and write are sent to and fro, and half of that counts, as in perftest; else the time from posting a request to its completion.\nExit status 0 when all was done and every content was right."
)]
pub(crate) struct Options {
    /// What is measured
    #[arg(value_enum, value_name = "OP", required_unless_present = "server")]
    op: Option<Op>,
    /// Is the requesting side, for a server at this address
    #[arg(value_name = "ADDRESS", requires = "op")]
    address: Option<String>,
    /// Is the responding side, for one client
    #[arg(long)]
    server: bool,
    /// Is both sides: two processes on this machine, over its loopback interface
    #[arg(long, requires = "op")]
    local: bool,
    /// The server's TCP port for the two sides' agreement
    #[arg(
        short = 'p',
        long,
        value_name = "PORT",
        default_value_t = 18515,
        conflicts_with = "local"
    )]
    port: u16,
    /// The transport service [default: rc]
    #[arg(long, value_enum, conflicts_with = "server")]
    transport: Option<Transport>,
    /// How the bytes get there [default: udp]
    #[arg(long, value_enum, conflicts_with = "server")]
    path: Option<Path>,
    /// How both sides wait [default: poll]
    #[arg(long, value_enum, conflicts_with = "server")]
    mode: Option<Mode>,
    /// Which atomic operation [default: fadd]
    #[arg(long, value_enum, conflicts_with = "server")]
    atomic: Option<Atomic>,
    /// Bytes in a message [default: 65536; with --lat 64, of datagrams 1024, of atomics 8]
    #[arg(long, value_name = "BYTES", conflicts_with = "server", value_parser = clap::value_parser!(u32).range(1..=1 << 29))]
    size: Option<u32>,
    /// Queue pairs, or TCP connections, at once [default: 1]
    #[arg(long, value_name = "COUNT", conflicts_with = "server", value_parser = clap::value_parser!(u32).range(1..=256))]
    qps: Option<u32>,
    /// Work requests outstanding on each [default: 128, fewer of large messages; with --lat 1]
    #[arg(long, value_name = "COUNT", conflicts_with = "server", value_parser = clap::value_parser!(u32).range(1..=4096))]
    window: Option<u32>,
    /// How long is measured, from 0.1 [default: 2]
    #[arg(long, value_name = "SECONDS", conflicts_with = "server", value_parser = seconds)]
    seconds: Option<f64>,
    /// Times one message after the other, in place of as many as the window allows
    #[arg(long, conflicts_with = "server")]
    lat: bool,
    /// Neither fills nor compares messages
    #[arg(long, conflicts_with = "server")]
    no_check: bool,
    /// Prints the result as one JSON object, and everything else to standard error
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let lines = Lines::new(options.json);
    let ending = Ending::register().map_err(system("signals"))?;
    if options.server {
        return serve(options, &ending, lines);
    }
    let plan = options.plan()?;
    plan.check()
        .map_err(|refusal| Failure::Usage(refusal.to_string()))?;
    if options.local {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(control::conversation)?;
        let address = listener.local_addr().map_err(control::conversation)?;
        let mut other = Other::start(address)?;
        let control = Control::answer(listener, || other.is_alive())?;
        let result = measure(&plan, control, &ending);
        // Why the other side has failed explains more than that it is gone.
        other.end(result.is_ok())?;
        return finish(options, lines, result?);
    }
    let Some(name) = &options.address else {
        unreachable!("clap requires one of the sides");
    };
    let address = crate::cmatose::resolve_address(name, options.port)?;
    let control = Control::dial(address)?;
    finish(options, lines, measure(&plan, control, &ending)?)
}

impl Options {
    fn plan(&self) -> Result<Plan, Failure> {
        let Some(op) = self.op else {
            unreachable!("clap requires an operation of the client");
        };
        if self.atomic.is_some() && op != Op::Atomic {
            return Err(Failure::Usage(format!(
                "--atomic says which atomic operation, and {op} is none"
            )));
        }
        let transport = self.transport.unwrap_or(Transport::Rc);
        let usual = Plan::usual_size(op, transport, self.lat);
        let size = self.size.unwrap_or(usual);
        Ok(Plan {
            op,
            atomic: self.atomic.unwrap_or(Atomic::Fadd),
            transport,
            path: self.path.unwrap_or(Path::Udp),
            mode: self.mode.unwrap_or(Mode::Poll),
            size,
            qps: self.qps.unwrap_or(1),
            window: self
                .window
                .unwrap_or_else(|| Plan::usual_window(size, self.lat)),
            lat: self.lat,
            check: !self.no_check,
            seconds: self.seconds.unwrap_or(DEFAULT_SECONDS),
        })
    }
}

fn finish(options: &Options, lines: Lines, outcome: Outcome) -> Result<(), Failure> {
    let mismatches = outcome.mismatches;
    let is_empty = outcome.messages == 0;
    if options.json {
        let results = vec![outcome];
        print_json("bench", mismatches == 0 && !is_empty, &Results { results })?;
    } else {
        for line in outcome.lines() {
            lines.say(line);
        }
    }
    match mismatches {
        0 if is_empty => Err(Failure::Result(
            "no message was completed in the time that is measured; give more --seconds".to_owned(),
        )),
        0 => Ok(()),
        wrong => Err(Failure::Result(format!(
            "{wrong} messages had other content than they should have"
        ))),
    }
}

/// The client's part.
fn measure(plan: &Plan, mut control: Control, ending: &Ending) -> Result<Outcome, Failure> {
    let outcome = measure_with(plan, &mut control, ending);
    // Why the other side has given up explains more than what followed from it here.
    outcome.map_err(|failure| control.refusal().unwrap_or(failure))
}

fn measure_with(plan: &Plan, control: &mut Control, ending: &Ending) -> Result<Outcome, Failure> {
    let host = host_for(plan)?;
    let (local, remote) = control.addresses()?;
    let lanes = host
        .as_ref()
        .map(|host| Lanes::new(host, plan, local))
        .transpose()?;
    control.say(&Message::Hello {
        version: control::VERSION,
        plan: *plan,
    })?;
    let Message::Ready(theirs) = control.hear(PATIENCE)? else {
        return Err(foreign());
    };
    let Some(mut lanes) = lanes else {
        let lens = socket::lengths(plan, true);
        let mut sockets = Sockets::connect(plan, control, theirs.token, lens)?;
        begin(control, End::default())?;
        let (active, posted) = socket::client(plan, &mut sockets, control, ending)?;
        return report(plan, control, &active, posted);
    };
    lanes.connect(remote.ip(), &theirs)?;
    let mut end = lanes.end();
    let (active, posted) = match plan.op {
        Op::Send if plan.lat => {
            lanes.post_receives(plan)?;
            begin(control, end)?;
            pingpong::ping(plan, &mut lanes, control, ending)?
        }
        Op::Write if plan.lat => {
            let memory = pingwrite::offer(plan, &lanes, &mut end)?;
            begin(control, end)?;
            pingwrite::ping(plan, &mut lanes, memory, &theirs, control, ending)?
        }
        _ => {
            let targets = remote::targets(plan, &theirs)?;
            begin(control, end)?;
            client::run(plan, &mut lanes, &targets, control, ending)?
        }
    };
    report(plan, control, &active, posted)
}

fn begin(control: &mut Control, end: End) -> Result<(), Failure> {
    control.say(&Message::Ready(end))?;
    match control.hear(PATIENCE)? {
        Message::Start => Ok(()),
        _ => Err(foreign()),
    }
}

/// Says that all is sent, and hears what has arrived.
fn report(
    plan: &Plan,
    control: &mut Control,
    active: &Active,
    posted: Vec<u64>,
) -> Result<Outcome, Failure> {
    control.say(&Message::Done { posted })?;
    let Message::Report(passive) = control.hear(REPORT_PATIENCE)? else {
        return Err(foreign());
    };
    Ok(Outcome::new(plan, active, &passive))
}

/// With TCP no device is needed.
fn host_for(plan: &Plan) -> Result<Option<Host>, Failure> {
    match plan.path {
        Path::Tcp => Ok(None),
        _ => crate::host::open().map(Some),
    }
}

/// The server's part.
fn serve(options: &Options, ending: &Ending, lines: Lines) -> Result<(), Failure> {
    let control = match std::env::var(JOIN_VARIABLE) {
        Ok(address) => {
            let address = address
                .parse()
                .map_err(|_| Failure::Usage(format!("{JOIN_VARIABLE}={address}: no address")))?;
            Control::dial(address)?
        }
        Err(_) => {
            let any = crate::cmatose::any_address(options.port);
            let listener = TcpListener::bind(any).map_err(control::conversation)?;
            let address = listener.local_addr().map_err(control::conversation)?;
            lines.say(format_args!("listening on {address}"));
            Control::answer(listener, || match ending.is_asked() {
                true => Err(asked_to_end()),
                false => Ok(()),
            })?
        }
    };
    let (plan, passive) = respond(options.op, control, ending)?;
    if options.json {
        print_json("bench", passive.mismatches == 0, &passive)?;
    } else {
        let op = plan.op;
        lines.say(format_args!(
            "served: {op}, messages {}, wrong {}",
            passive.received, passive.mismatches
        ));
    }
    match passive.mismatches {
        0 => Ok(()),
        wrong => Err(Failure::Result(format!("{wrong} messages were wrong"))),
    }
}

fn respond(
    only: Option<Op>,
    mut control: Control,
    ending: &Ending,
) -> Result<(Plan, Passive), Failure> {
    let Message::Hello { version, plan } = control.hear(PATIENCE)? else {
        return Err(foreign());
    };
    let refusal = if version != control::VERSION {
        Some(format!(
            "version {version} of bench is not version {}, which is this side's: use one release on both sides",
            control::VERSION
        ))
    } else if only.is_some_and(|only| only != plan.op) {
        only.map(|only| format!("{} is asked for, and {only} is served", plan.op))
    } else {
        plan.check().err().map(|refusal| refusal.to_string())
    };
    if let Some(sentence) = refusal {
        return Err(refuse(&mut control, sentence));
    }
    let passive = match respond_to(&plan, &mut control, ending) {
        Ok(passive) => passive,
        Err(failure) => {
            // The client learns the cause, unless it is the cause.
            refuse(&mut control, failure.to_string());
            return Err(failure);
        }
    };
    control.say(&Message::Report(passive.clone()))?;
    Ok((plan, passive))
}

fn refuse(control: &mut Control, sentence: String) -> Failure {
    let message = Message::Refused {
        sentence: sentence.clone(),
    };
    if let Err(failure) = control.say(&message) {
        tracing::debug!("the client was not told: {failure}");
    }
    Failure::Protocol(sentence)
}

fn respond_to(plan: &Plan, control: &mut Control, ending: &Ending) -> Result<Passive, Failure> {
    let Some(host) = host_for(plan)? else {
        let end = Sockets::end();
        let token = end.token;
        control.say(&Message::Ready(end))?;
        let lens = socket::lengths(plan, false);
        let mut sockets = Sockets::connect(plan, control, token, lens)?;
        let Message::Ready(_) = control.hear(PATIENCE)? else {
            return Err(foreign());
        };
        control.say(&Message::Start)?;
        return socket::server(plan, &mut sockets, control, ending);
    };
    let (local, remote) = control.addresses()?;
    let mut lanes = Lanes::new(&host, plan, local)?;
    let mut end = lanes.end();
    if plan.op == Op::Write && plan.lat {
        let memory = pingwrite::offer(plan, &lanes, &mut end)?;
        let theirs = agree(&mut lanes, remote.ip(), end, control)?;
        return pingwrite::pong(plan, &mut lanes, memory, &theirs, control, ending);
    }
    let memory = remote::offer(plan, &lanes, &mut end)?;
    if plan.op == Op::Send {
        lanes.post_receives(plan)?;
    }
    agree(&mut lanes, remote.ip(), end, control)?;
    if plan.lat && plan.op == Op::Send {
        pingpong::pong(plan, &mut lanes, control, ending)
    } else {
        server::run(plan, &mut lanes, &memory, control, ending)
    }
}

/// Says what is here, connects with what is there, and lets the client begin.
fn agree(
    lanes: &mut Lanes,
    remote: IpAddr,
    end: End,
    control: &mut Control,
) -> Result<End, Failure> {
    control.say(&Message::Ready(end))?;
    let Message::Ready(theirs) = control.hear(PATIENCE)? else {
        return Err(foreign());
    };
    lanes.connect(remote, &theirs)?;
    control.say(&Message::Start)?;
    Ok(theirs)
}

/// The other process of `--local`; killed when it is dropped.
struct Other(Child);

impl Other {
    fn start(address: SocketAddr) -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(system("the path of this program"))?;
        let child = Command::new(program)
            .args(["bench", "--server", "--json"])
            .env(JOIN_VARIABLE, address.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(system("starting a process"))?;
        Ok(Self(child))
    }

    fn is_alive(&mut self) -> Result<(), Failure> {
        match self.0.try_wait().map_err(system("the other process"))? {
            None => Ok(()),
            Some(status) => Err(failed(status)),
        }
    }

    /// Waits for its end after a measurement that was made, and kills it after one that was not.
    fn end(mut self, made: bool) -> Result<(), Failure> {
        if made {
            let status = self.0.wait().map_err(system("the other process"))?;
            // Wrong contents are in the report, and told from there.
            tracing::debug!("the other process: {status}");
        }
        Ok(())
    }
}

fn failed(status: std::process::ExitStatus) -> Failure {
    Failure::Child {
        role: "responding",
        status: status.to_string(),
        sentence: "its own message stands above".to_owned(),
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The other side ended in the middle.
fn gone() -> Failure {
    Failure::Protocol("the other side has ended before the measurement has".to_owned())
}

fn silent(limit: Duration) -> Failure {
    Failure::Protocol(format!(
        "nothing has come from the other side for {:.0} s",
        limit.as_secs_f64()
    ))
}

fn asked_to_end() -> Failure {
    Failure::Result("ended by a signal before the measurement was made".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if plan::SECONDS.contains(&seconds) => Ok(seconds),
        _ => Err("give seconds, from 0.1 to 86400".to_owned()),
    }
}

/// Of the process that `--local` starts: whom it calls, in place of waiting for a client.
const JOIN_VARIABLE: &str = "OARLOCK_BENCH_JOIN";
const DEFAULT_SECONDS: f64 = 2.0;
/// A server compares up to a gigabyte before it reports.
const REPORT_PATIENCE: Duration = Duration::from_secs(60);
