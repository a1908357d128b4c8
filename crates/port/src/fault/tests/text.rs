use super::*;
use oarlock_wire::base::TransportClass;

#[test]
fn rules_print_as_they_are_read() {
    for text in [
        "drop",
        "drop:opcode=ack,p=0.25,seed=18446744073709551615,after=3,count=7",
        "duplicate:opcode=rc_send_only,qpn=0x020011-0x0200ff",
        "delay:psn=0xfffff0-0x000010,direction=tx,us=60000000",
        "reorder:opcode=read,us=250",
        "corrupt:opcode=xrc_rdma_write_middle,field=payload",
        "corrupt:opcode=cm_rep,field=icrc,count=1",
        "rnr:qpn=0x000007,count=3",
        "qp_error:opcode=nak,count=1",
        "device_removal:opcode=cm_dreq,count=1",
        "address_change:opcode=atomic,after=9,count=2",
        "drop:opcode=0x1f",
        "drop:opcode=write;delay:direction=rx,us=1;drop:opcode=cm",
    ] {
        let rules: Rules = text.parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(rules.to_string(), text);
        assert_eq!(rules.to_string().parse::<Rules>().unwrap(), rules);
    }
    let loose: Rules =
        " drop : opcode = any , p = 1.0 ;; reorder: us=10000;qp_error: direction=rx ; "
            .parse()
            .unwrap();
    assert_eq!(loose.to_string(), "drop;reorder:us=10000;qp_error:count=1");
    assert!(Rules::default().is_empty() && "".parse::<Rules>().unwrap().is_empty());
}

/// Nothing is accepted and ignored: kind, key and value are named by the refusal.
#[test]
fn what_is_no_rule_is_refused_by_name() {
    let wrong = [
        ("lose:p=0.1", "`lose`"),
        ("", ""),
        ("drop:prob=0.1", "`prob`"),
        ("drop:p", "`p` has no value"),
        ("drop:", "has no value"),
        ("drop:p=0", "`p=0`"),
        ("drop:p=1.5", "`p=1.5`"),
        ("drop:p=NaN", "`p=NaN`"),
        ("drop:p=-0.5", "`p=-0.5`"),
        ("drop:opcode=rc_sent_only", "`opcode=rc_sent_only`"),
        ("drop:opcode=RC_SEND_ONLY", "`opcode=RC_SEND_ONLY`"),
        ("drop:opcode=0x100", "`opcode=0x100`"),
        ("drop:qpn=0x1000000", "`qpn=0x1000000`"),
        ("drop:psn=1-", "`psn=1-`"),
        ("drop:psn=+1", "`psn=+1`"),
        ("drop:count=0", "`count=0`"),
        ("drop:count=1,count=2", "`count` is given twice"),
        ("drop:seed=-1", "`seed=-1`"),
        ("drop:after=1e3", "`after=1e3`"),
        ("drop:direction=both", "`direction=both`"),
        ("drop:us=10", "`us` has no meaning for `drop`"),
        ("delay", "`delay` needs `us`"),
        ("delay:us=0", "`us=0`"),
        ("delay:us=60000001", "`us=60000001`"),
        ("delay:us=5,field=bth", "`field` has no meaning for `delay`"),
        ("corrupt:field=deth", "`field=deth`"),
        ("rnr:direction=tx", "`direction=tx`"),
        ("qp_error:opcode=cm", "`opcode=cm`"),
        ("rnr:opcode=cm_req", "`opcode=cm_req`"),
    ];
    for (rule, named) in wrong {
        let text = format!("drop:p=0.5;{rule}");
        match text.parse::<Rules>() {
            Ok(rules) => assert!(rule.is_empty(), "{rule} was read as {rules}"),
            Err(error) => {
                let sentence = error.to_string();
                assert!(sentence.contains(named), "{rule}: {sentence}");
                let number = format!("fault rule 2 (`{rule}`)");
                assert!(sentence.starts_with(&number), "{sentence}");
            }
        }
    }
    let many = "drop;".repeat(257);
    let error = many.parse::<Rules>().unwrap_err();
    assert_eq!((error.number, error.problem), (257, RuleProblem::TooMany));
}

#[test]
fn rules_are_a_programs_or_the_services() {
    let rules: Rules = "drop;drop:opcode=cm;delay:us=1,opcode=cm_rtu;rnr"
        .parse()
        .unwrap();
    assert_eq!(rules.of_program().to_string(), "drop;rnr");
    assert_eq!(
        rules.of_service().to_string(),
        "drop:opcode=cm;delay:opcode=cm_rtu,us=1"
    );
}

/// Every opcode that has a name can be named, and a rule strikes that one and no other.
#[test]
fn each_opcode_has_its_name() {
    let named: Vec<Opcode> = (0..=u8::MAX)
        .map(Opcode)
        .filter(|opcode| opcode.name().is_some())
        .collect();
    assert!(named.len() > 100);
    for wanted in &named {
        let name = wanted.to_string().to_ascii_lowercase();
        let faults = faults(&format!("drop:opcode={name}"));
        let struck = |opcode: &&Opcode| {
            faults
                .judge(&packet(**opcode, QPN, 1), Direction::Tx)
                .is_some()
        };
        assert_eq!(named.iter().filter(struck).collect::<Vec<_>>(), [wanted]);
    }
}

/// The classes over every opcode, against the words in the opcodes' names.
#[test]
fn the_classes_are_those_of_the_operations() {
    let words = [
        ("send", &["SEND_"][..]),
        ("write", &["RDMA_WRITE"]),
        ("read", &["RDMA_READ"]),
        ("atomic", &["COMPARE_SWAP", "FETCH_ADD", "ATOMIC_ACK"]),
        ("any", &[""]),
    ];
    for (class, words) in words {
        let faults = faults(&format!("drop:opcode={class}"));
        for opcode in (0..=u8::MAX).map(Opcode) {
            let name = opcode.to_string();
            let expected = words.iter().any(|word| name.contains(word));
            let struck = faults.judge(&packet(opcode, QPN, 1), Direction::Rx);
            assert_eq!(struck.is_some(), expected, "{class}: {name}");
        }
    }
    let syndromes = [
        (0x00, "ack"),
        (0x1F, "ack"),
        (0x20, "nak"),
        (0x60, "nak"),
        (0x63, "nak"),
    ];
    for (syndrome, class) in syndromes {
        for asked in ["ack", "nak"] {
            for transport in [TransportClass::Rc, TransportClass::Xrc] {
                let mut answer = packet(Opcode::RC_ACKNOWLEDGE.of(transport), QPN, 1);
                answer[12] = syndrome;
                let struck = faults(&format!("drop:opcode={asked}")).judge(&answer, Direction::Rx);
                assert_eq!(struck.is_some(), asked == class, "{syndrome:#x} {asked}");
            }
        }
    }
}

/// Management datagrams are struck by the rules that name them, and by no others.
#[test]
fn management_datagrams_are_a_kind_of_their_own() {
    let mad = |attribute: u16| {
        let mut mad = packet(Opcode::UD_SEND_ONLY, 1, 5);
        mad.resize(12 + 8 + 256, 0);
        mad[36..38].copy_from_slice(&attribute.to_be_bytes());
        mad
    };
    let struck = |rule: &str, packet: &[u8]| faults(rule).judge(packet, Direction::Rx).is_some();
    // IBA Vol. 1 ch. 12: attribute 0x10 is REQ, 0x14 RTU.
    assert!(struck("drop:opcode=cm", &mad(0x10)));
    assert!(struck("drop:opcode=cm_req", &mad(0x10)));
    assert!(struck("drop:opcode=cm_rtu", &mad(0x14)));
    assert!(!struck("drop:opcode=cm_rtu", &mad(0x10)));
    for rule in ["drop", "drop:opcode=send", "drop:opcode=ud_send_only"] {
        assert!(!struck(rule, &mad(0x10)), "{rule}");
        assert!(struck(rule, &packet(Opcode::UD_SEND_ONLY, 2, 5)), "{rule}");
    }
    assert!(!struck(
        "drop:opcode=cm",
        &packet(Opcode::UD_SEND_ONLY, 2, 5)
    ));
}

#[test]
fn a_range_of_psns_may_go_over_the_top() {
    let faults = faults("drop:psn=0xfffffe-0x000001");
    let struck: Vec<u32> = [0xFF_FFFD, 0xFF_FFFE, 0xFF_FFFF, 0, 1, 2]
        .into_iter()
        .filter(|psn| faults.judge(&send_only(QPN, *psn), Direction::Tx).is_some())
        .collect();
    assert_eq!(struck, [0xFF_FFFE, 0xFF_FFFF, 0, 1]);
}

#[test]
fn a_record_is_text_of_one_line_for_each_fault() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let faults = faults("corrupt:field=icrc,count=1;drop:opcode=ack;delay:us=70,after=2;rnr:qpn=9");
    faults.record_to(file.reopen().unwrap()).unwrap();
    let _ = faults.judge(&send_only(0x10, 0x3E8), Direction::Tx);
    let _ = faults.judge(&packet(Opcode::RC_ACKNOWLEDGE, 0x11, 4), Direction::Tx);
    let _ = faults.judge(&send_only(9, 7), Direction::Rx);
    let _ = faults.judge(&send_only(0x10, 0x3E9), Direction::Tx);
    let text = std::fs::read_to_string(file.path()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[..5],
        [
            "# oarlock fault record 1",
            "# rule 1: corrupt:field=icrc,count=1",
            "# rule 2: drop:opcode=ack",
            "# rule 3: delay:us=70,after=2",
            "# rule 4: rnr:qpn=0x000009"
        ]
    );
    let corrupted = lines[5].split_once("corrupt=").unwrap();
    assert_eq!(corrupted.0, "0 tx rc_send_only qpn=0x000010 psn=0x0003e8 ");
    let (place, qp) = corrupted.1.split_once(' ').unwrap();
    let (offset, bit) = place.split_once('.').unwrap();
    assert!(
        (20..24).contains(&offset.parse::<u32>().unwrap()),
        "{offset}"
    );
    assert!(bit.parse::<u32>().unwrap() < 8 && qp == "qp=1");
    assert_eq!(
        lines[6..],
        [
            "0 tx rc_acknowledge qpn=0x000011 psn=0x000004 drop qp=2",
            "0 rx rc_send_only qpn=0x000009 psn=0x000007 delay=70 qp=1",
            "1 tx rc_send_only qpn=0x000010 psn=0x0003e9 delay=70 qp=1",
        ]
    );
    let replay = Faults::replay(&text, false).unwrap();
    assert_eq!(replay.counts()[0].matched, 4);
    assert!(replay.may_hold() && replay.rules().is_none());
    assert_eq!(Faults::replay(&text, true).unwrap().counts()[0].matched, 0);
}

#[test]
fn a_line_that_is_none_is_named() {
    let read = |text: &str| Faults::replay(text, false).map(|replay| replay.counts()[0].matched);
    assert_eq!(read("").unwrap_err().line, 1);
    assert_eq!(read("# oarlock fault record 2\n").unwrap_err().line, 1);
    let good = "12 tx rc_send_only qpn=0x020011 psn=0x0003e8 drop qp=1";
    let record = |line: &str| read(&format!("# oarlock fault record 1\n# for people\n{line}\n"));
    assert_eq!(record(good), Ok(1));
    for wrong in [
        "12 tx rc_send_only qpn=0x020011 psn=0x0003e8 drop",
        "12 up rc_send_only qpn=0x020011 psn=0x0003e8 drop qp=1",
        "12 tx rc_send_sonly qpn=0x020011 psn=0x0003e8 drop qp=1",
        "12 tx rc_send_only qpn=0x1020011 psn=0x0003e8 drop qp=1",
        "12 tx rc_send_only qpn=0x020011 psn=0x0003e8 lose qp=1",
        "12 tx rc_send_only qpn=0x020011 psn=0x0003e8 corrupt=3.8 qp=1",
        "12 tx rc_send_only qpn=0x020011 psn=0x0003e8 delay qp=1",
        "12 tx rc_send_only qpn=0x020011 psn=0x0003e8 drop qp=1 more",
        "-1 tx rc_send_only qpn=0x020011 psn=0x0003e8 drop qp=1",
    ] {
        let error = record(wrong).unwrap_err();
        assert_eq!((error.line, error.text.as_str()), (3, wrong));
    }
}

/// Any text is read or refused, never a panic, and what is read prints as a text that says the same.
#[test]
fn any_text_is_rules_a_record_or_neither() {
    let rules = "drop:opcode=ack,p=0.25,seed=9;delay:psn=0xfffff0-0x10,us=70,direction=tx;corrupt:field=icrc,qpn=1-2,count=3;rnr:after=1";
    let record = "# oarlock fault record 1\n3 rx rc_acknowledge qpn=0x020011 psn=0x0003e8 corrupt=40.3 qp=1\n12 tx 0xff qpn=0x000001 psn=0xffffff delay=70 qp=2\n";
    let bytes = *b"\0 -,;:=.0x9\n\xffae";
    let (mut read, mut tried) = (0, 0);
    for (is_record, text) in [(false, rules), (true, record)] {
        for place in 0..text.len() {
            for byte in bytes {
                for cut in [false, true] {
                    let mut changed = text.as_bytes().to_vec();
                    changed[place] = byte;
                    if cut {
                        changed.truncate(place + 1);
                    }
                    let changed = String::from_utf8_lossy(&changed);
                    tried += 1;
                    if is_record {
                        read += usize::from(Faults::replay(&changed, false).is_ok());
                    } else if let Ok(rules) = changed.parse::<Rules>() {
                        read += 1;
                        assert_eq!(rules.to_string().parse::<Rules>().as_ref(), Ok(&rules));
                    }
                }
            }
        }
    }
    assert!(read > 100 && tried > read, "{read} of {tried}");
}
