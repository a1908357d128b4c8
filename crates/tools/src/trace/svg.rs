//! Ladders as a picture: two lifelines for each connection, and an arrow for each packet.
//!
//! Plain SVG 1.1 without scripts or references, the same for the same capture, and bounded however large that is: so many connections,
//! of each so many packets ([`steps`](super::exchange::steps)), of each so many letters, with the whole text where the
//! pointer rests.

use super::Exchanges;
use super::exchange::stamp;
use super::exchange::steps::{Arrow, Step, Style};
use std::fmt::Write as _;
use std::net::IpAddr;

/// A picture.
pub(super) struct Picture {
    pub(super) text: String,
    /// How many connections and resolutions it shows.
    pub(super) drawn: usize,
}

/// Draws one connection or resolution, or as many as there is room for.
pub(super) fn picture(exchanges: &Exchanges, only: Option<usize>) -> Picture {
    let numbers: Vec<usize> = match only {
        Some(number) => vec![number],
        None => (1..=exchanges.count().min(MAX_DRAWN)).collect(),
    };
    let mut page = Page::default();
    page.legend();
    let mut drawn = 0;
    for number in numbers {
        if let Some((title, sides, steps)) = exchanges.drawing(number) {
            page.exchange(&title, sides, steps);
            drawn += 1;
        }
    }
    if only.is_none() {
        let left = exchanges.count() - drawn;
        if left > 0 {
            page.note(&format!(
                "{left} more are not drawn; --connection N draws one of them"
            ));
        }
        let lines = exchanges.group_lines();
        for line in lines.iter().take(MAX_GROUP_LINES) {
            page.note(line);
        }
        if lines.len() > MAX_GROUP_LINES {
            page.note("more about groups is in the text form");
        }
        page.note(&exchanges.summary());
    }
    Picture {
        text: page.finish(),
        drawn,
    }
}

/// What is drawn so far, from the top down.
#[derive(Default)]
struct Page {
    body: String,
    /// Where the next thing begins.
    y: u32,
}

impl Page {
    fn legend(&mut self) {
        self.y = MARGIN + 6;
        let mut x = MARGIN;
        for (style, text) in [
            (Style::Message, "management"),
            (Style::Data, "data"),
            (Style::Ack, "acknowledgement"),
            (Style::Nak, "negative acknowledgement"),
            (Style::DataAgain, "sent again"),
        ] {
            let class = class(style);
            let (end, y) = (x + 30, self.y);
            self.element(format_args!(
                r#"<line class="{class}" x1="{x}" y1="{y}" x2="{end}" y2="{y}"/>"#
            ));
            self.text("legend", end + 8, y + 4, text);
            x = end + 8 + 30 + text.len() as u32 * 7;
        }
        self.y += 34;
    }

    fn exchange(&mut self, title: &str, sides: [IpAddr; 2], steps: &[Step]) {
        self.text("title", MARGIN, self.y, title);
        let top = self.y + 14;
        for ((x, role), address) in [(A, "active"), (B, "passive")].into_iter().zip(sides) {
            let left = x - BOX_WIDTH / 2;
            self.element(format_args!(
                r#"<rect class="side" x="{left}" y="{top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5"/>"#
            ));
            let side = if x == A { "A" } else { "B" };
            self.text("side", x, top + 20, &format!("{side} · {address} ({role})"));
        }
        let begin = top + BOX_HEIGHT;
        self.y = begin + 8;
        let lifelines = self.body.len();
        for step in steps {
            match step {
                Step::Arrow(arrow) => self.arrow(arrow),
                Step::Gap(packets) => self.gap(*packets),
            }
        }
        self.y += 12;
        // Under the arrows.
        let end = self.y;
        let lines: String = [A, B]
            .map(|x| {
                format!(
                    "<line class=\"life\" x1=\"{x}\" y1=\"{begin}\" x2=\"{x}\" y2=\"{end}\"/>\n"
                )
            })
            .concat();
        self.body.insert_str(lifelines, &lines);
        self.y += 42;
    }

    fn arrow(&mut self, arrow: &Arrow) {
        self.y += ROW;
        let (from, to) = if arrow.to_b { (A, B) } else { (B, A) };
        let (start, end) = (self.y - SLANT, self.y);
        let class = class(arrow.style);
        // The tip, and the line up to it.
        let back = if arrow.to_b { to - TIP } else { to + TIP };
        let again = match arrow.style {
            Style::MessageAgain | Style::DataAgain => "  (again)",
            _ => "",
        };
        let whole = format!("{}{again}", arrow.label);
        let time = stamp(arrow.at);
        self.element(format_args!("<g>"));
        self.element(format_args!(
            "<title>{}  {}</title>",
            escaped(&time),
            escaped(&whole)
        ));
        self.text("time", MARGIN, end, &time);
        self.element(format_args!(
            r#"<line class="{class}" x1="{from}" y1="{start}" x2="{back}" y2="{end}"/>"#
        ));
        let (above, below) = (end - 4, end + 4);
        self.element(format_args!(
            r#"<path class="{class} tip" d="M{to} {end}L{back} {above}L{back} {below}Z"/>"#
        ));
        self.text(
            &format!("{class} label"),
            A.midpoint(B),
            end - SLANT - 4,
            &shortened(&whole),
        );
        self.element(format_args!("</g>"));
    }

    fn gap(&mut self, packets: u64) {
        self.y += ROW;
        let words = match packets {
            1 => "1 more packet".to_owned(),
            packets => format!("{packets} more packets"),
        };
        self.text("gap", A.midpoint(B), self.y, &format!("⋮  {words}"));
    }

    fn note(&mut self, line: &str) {
        self.text("note", MARGIN, self.y, line);
        self.y += 20;
    }

    fn text(&mut self, class: &str, x: u32, y: u32, text: &str) {
        let text = escaped(text);
        self.element(format_args!(
            r#"<text class="{class}" x="{x}" y="{y}">{text}</text>"#
        ));
    }

    fn element(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.body, "{element}");
    }

    fn finish(self) -> String {
        let height = self.y + MARGIN;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\">\n<style>\n{CSS}</style>\n<rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\"/>\n{}</svg>\n",
            self.body
        )
    }
}

fn class(style: Style) -> &'static str {
    match style {
        Style::Message => "message",
        Style::MessageAgain => "message again",
        Style::Data => "data",
        Style::DataAgain => "data again",
        Style::Ack => "ack",
        Style::Nak => "nak",
    }
}

/// As text of XML. What XML cannot hold at all is a question mark.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\0'..='\u{1F}' | '\u{7F}' | '\u{FFFE}' | '\u{FFFF}' => out.push('?'),
            letter => out.push(letter),
        }
    }
    out
}

/// What fits between the lifelines.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_LETTERS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

const WIDTH: u32 = 1040;
const MARGIN: u32 = 20;
/// The lifelines.
const A: u32 = 220;
const B: u32 = 920;
const BOX_WIDTH: u32 = 230;
const BOX_HEIGHT: u32 = 30;
const ROW: u32 = 30;
/// How much later a packet arrives, in the picture.
const SLANT: u32 = 6;
const TIP: u32 = 9;
/// About the width between the lifelines.
const MAX_LETTERS: usize = 98;
const MAX_DRAWN: usize = 50;
const MAX_GROUP_LINES: usize = 200;
const CSS: &str = "\
text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#24292f}
.page{fill:#fff}
text.title{font:600 15px system-ui,sans-serif}
text.side{font:12px system-ui,sans-serif;text-anchor:middle}
text.legend,text.note{font:12px system-ui,sans-serif;fill:#57606a}
text.time{font-size:11px;fill:#57606a}
text.gap{text-anchor:middle;fill:#57606a}
text.label{font-size:11px;text-anchor:middle;stroke:none}
rect.side{fill:#eef3fb;stroke:#1f4e9c}
.life{stroke:#8c959f;stroke-width:1.5;stroke-dasharray:2 3}
line.message{stroke:#1f4e9c;stroke-width:2}
path.message,text.message{fill:#1f4e9c}
line.data{stroke:#2e7d32;stroke-width:1.3}
path.data,text.data{fill:#2e7d32}
line.ack{stroke:#8c959f;stroke-width:1}
path.ack,text.ack{fill:#6e7781}
line.nak{stroke:#c62828;stroke-width:1.6}
path.nak,text.nak{fill:#c62828}
line.again{stroke:#c62828;stroke-dasharray:6 4}
path.again,text.again{fill:#c62828}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_shortened_between_letters() {
        assert_eq!(
            escaped("<a href=\"x\">&'\0\u{1b}ü</a>"),
            "&lt;a href=&quot;x&quot;&gt;&amp;'??ü&lt;/a&gt;"
        );
        let long = "ü".repeat(MAX_LETTERS + 1);
        assert_eq!(shortened(&long).chars().count(), MAX_LETTERS + 1);
        assert!(shortened(&long).ends_with('…'));
        let fits = "ü".repeat(MAX_LETTERS);
        assert_eq!(shortened(&fits), fits);
    }
}
