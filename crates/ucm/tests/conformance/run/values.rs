//! Words of a row as values, and fields compared with them.

use super::{Kind, Outcome, Record, Run};
use crate::layout::{Addr, Value, number};

impl Run<'_> {
    pub(super) fn record(&self, kind: Kind, layout: &str, bytes: Vec<u8>) -> Record {
        Record {
            kind,
            layout: layout.into(),
            bytes,
        }
    }

    pub(super) fn read(&self, record: &Record, field: &str) -> Result<Value, String> {
        let (layouts, bytes) = match record.kind {
            Kind::Answer => (&self.layouts.answers, &record.bytes[..]),
            Kind::Message if field == "attr_mod" => {
                let b = &record.bytes[20..24];
                return Ok(Value::Int(
                    u32::from_be_bytes([b[0], b[1], b[2], b[3]]).into(),
                ));
            }
            Kind::Message => (&self.layouts.messages, &record.bytes[24..]),
        };
        let field = layouts[&record.layout]
            .field(field)
            .ok_or_else(|| format!("{} has no field {field}", record.layout))?;
        Ok(field.get(bytes))
    }

    /// `field=value`, `field&mask=value`, or another comparison.
    pub(super) fn check(&self, record: &Record, word: &str) -> Outcome {
        let operators = ["!=", ">=", "<=", "="];
        let (operator, (field, wanted)) = operators
            .iter()
            .find_map(|operator| Some((*operator, word.split_once(operator)?)))
            .ok_or_else(|| format!("{word} compares nothing"))?;
        let (field, mask) = match field.split_once('&') {
            Some((field, mask)) => (field, Some(self.int(mask)?)),
            None => (field, None),
        };
        let got = match (self.read(record, field)?, mask) {
            (Value::Int(got), Some(mask)) => Value::Int(got & mask),
            (got, _) => got,
        };
        let holds = match (wanted.strip_suffix(":*"), operator) {
            (Some(address), "=") => match (&got, self.value(address)?) {
                (Value::Addr(got), Value::Addr(wanted)) => got.ip == wanted.ip,
                _ => false,
            },
            _ => {
                let wanted = self.value(wanted)?;
                match (operator, &got, &wanted) {
                    ("=", ..) => equal(&got, &wanted),
                    ("!=", ..) => !equal(&got, &wanted),
                    (">=", Value::Int(got), Value::Int(wanted)) => got >= wanted,
                    ("<=", Value::Int(got), Value::Int(wanted)) => got <= wanted,
                    _ => return Err(format!("{word}: no order between these")),
                }
            }
        };
        match holds {
            true => Ok(()),
            false => Err(format!("{word} was expected, {field} is {got}")),
        }
    }

    pub(super) fn address(&self, name: &str) -> Result<Addr, String> {
        let (ip, scope) = self
            .subject
            .address(name)
            .ok_or_else(|| format!("there is no address ${name}"))?;
        Ok(Addr { ip, port: 0, scope })
    }

    pub(super) fn int(&self, text: &str) -> Result<i128, String> {
        match self.value(text)? {
            Value::Int(value) => Ok(value),
            other => Err(format!("{other} is no number")),
        }
    }

    pub(super) fn bytes(&self, text: &str) -> Result<Vec<u8>, String> {
        if let Some((one, other)) = text.split_once('+') {
            return Ok([self.bytes(one)?, self.bytes(other)?].concat());
        }
        if let Some(value) = text.strip_prefix("u8:") {
            return Ok(vec![self.int(value)? as u8]);
        }
        if let Some(value) = text.strip_prefix("i32:") {
            return Ok((self.int(value)? as i32).to_ne_bytes().to_vec());
        }
        if let Some(record) = self.records.get(text) {
            return Ok(record.bytes.clone());
        }
        match self.value(text)? {
            Value::Bytes(bytes) => Ok(bytes),
            other => Err(format!("{other} is no sequence of bytes")),
        }
    }

    /// A word of a row as a value.
    pub(super) fn value(&self, text: &str) -> Result<Value, String> {
        if let Some(value) = number(text).or_else(|| {
            let kinds = ["value", "event", "errno"];
            kinds
                .iter()
                .find_map(|kind| self.layouts.number(kind, text))
        }) {
            return Ok(Value::Int(value));
        }
        if let Some(positive) = text.strip_prefix('-') {
            return Ok(Value::Int(-self.int(positive)?));
        }
        if text == "none" {
            return Ok(Value::None);
        }
        if let Some(text) = text.strip_prefix('"') {
            return Ok(Value::Bytes(text.trim_end_matches('"').into()));
        }
        if let Some((times, text)) = text.split_once('*') {
            let Value::Bytes(bytes) = self.value(text)? else {
                return Err(format!("{text} cannot be repeated"));
            };
            return Ok(Value::Bytes(bytes.repeat(self.int(times)? as usize)));
        }
        if let Some(hex) = text.strip_prefix("hex:") {
            let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
            return Ok(Value::Bytes(
                digits
                    .chunks(2)
                    .map(|pair| (pair[0] << 4 | pair[1]) as u8)
                    .collect(),
            ));
        }
        if let Some(rest) = text.strip_prefix("native:") {
            return match self.value(rest)? {
                Value::Addr(addr) => Ok(Value::Native(addr)),
                other => Err(format!("{other} is no address")),
            };
        }
        for (prefix, space) in [("tcp:", 0x0106), ("udp:", 0x0111), ("ib:", 0x013F)] {
            if let Some(port) = text.strip_prefix(prefix) {
                return Ok(Value::Int(space << 16 | self.int(port)?));
            }
        }
        if let Some(name) = text.strip_prefix('$') {
            if let Some(n) = name.strip_prefix('P').and_then(|n| n.parse().ok()) {
                return Ok(Value::Int(self.subject.port(n).into()));
            }
            let (name, port) = name.split_once(':').unwrap_or((name, "0"));
            let port = self.int(port)? as u16;
            return Ok(Value::Addr(Addr {
                port,
                ..self.address(name)?
            }));
        }
        let (name, field) = text.split_once('.').unwrap_or((text, "id"));
        match self.records.get(name) {
            Some(record) => self.read(record, field),
            None => Err(format!("{text} is no value")),
        }
    }
}

fn equal(got: &Value, wanted: &Value) -> bool {
    match (got, wanted) {
        // A field of a message has no length: what was sent, and zeros.
        (Value::Bytes(got), Value::Bytes(wanted)) => {
            got.starts_with(wanted) && got[wanted.len()..].iter().all(|byte| *byte == 0)
        }
        (Value::Addr(got), Value::Addr(wanted)) => {
            let scopes = got.scope == wanted.scope || got.scope == 0 || wanted.scope == 0;
            got.ip == wanted.ip && got.port == wanted.port && scopes
        }
        _ => got == wanted,
    }
}
