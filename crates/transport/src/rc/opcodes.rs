//! What an opcode means to this engine, looked up once per packet.

use oarlock_wire::Opcode;
use oarlock_wire::base::Operation;

/// Who takes a packet, and as what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Service {
    Send,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
    /// A request with a reserved opcode, or one of reliable datagrams only.
    Unknown,
    Acknowledge,
    ReadResponse,
    AtomicAcknowledge,
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meaning {
    pub(super) service: Service,
    pub(super) is_first: bool,
    pub(super) is_last: bool,
}

impl Service {
    pub(super) const fn is_response(self) -> bool {
        matches!(
            self,
            Self::Acknowledge | Self::ReadResponse | Self::AtomicAcknowledge
        )
    }
}

impl Meaning {
    /// The transport class is the caller's to check.
    pub(super) const fn of(opcode: Opcode) -> Self {
        MEANINGS[(opcode.0 & OPERATION) as usize]
    }
}

/// The bits of an opcode that are not its transport class.
const OPERATION: u8 = 0x1F;

const MEANINGS: [Meaning; OPERATION as usize + 1] = {
    let unknown = Meaning {
        service: Service::Unknown,
        is_first: true,
        is_last: true,
    };
    let mut meanings = [unknown; OPERATION as usize + 1];
    let mut code = 0;
    while code <= OPERATION {
        let opcode = Opcode(code);
        let position = opcode.position();
        meanings[code as usize] = Meaning {
            service: match opcode.operation() {
                Operation::Send => Service::Send,
                Operation::RdmaWrite => Service::Write,
                Operation::RdmaReadRequest => Service::Read,
                Operation::CompareSwap => Service::CompareSwap,
                Operation::FetchAdd => Service::FetchAdd,
                Operation::Acknowledge => Service::Acknowledge,
                Operation::RdmaReadResponse => Service::ReadResponse,
                Operation::AtomicAcknowledge => Service::AtomicAcknowledge,
                _ => Service::Unknown,
            },
            is_first: position.is_start(),
            is_last: position.is_end(),
        };
        code += 1;
    }
    meanings
};
