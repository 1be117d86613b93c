//! One document as a flat sequence of events, with aliases already replaced by what they name.
//!
//! ```text
//!   granit-parser ─▶ pull ─▶ [record for open anchors] ─▶ peek / next
//!         alias ─▶ replay frames ──┘
//! ```
//!
//! Bounds: [`MAX_DEPTH`] levels of nesting, [`MAX_COPIES`] events copied for anchors and aliases in
//! the whole file. Without an anchor nothing is copied. Knows nothing of serde.

use std::{collections::BTreeMap, rc::Rc};

use granit_parser::{Event, Marker, Parser, ScalarStyle, StrInput, Tag};

use super::{fault::Fault, scalar::Scalar};

/// Levels of lists and mappings; the deepest file of ours has seven.
pub(super) const MAX_DEPTH: usize = 64;

/// Events (a scalar, or the begin or end of a collection) kept for anchors or replayed for aliases.
/// About 100 octets each, so 10 MB at worst.
pub(super) const MAX_COPIES: usize = 100_000;

/// One piece of a document.
#[derive(Clone, Debug)]
pub(super) enum Item<'a> {
    MapEnd,
    MapStart,
    Scalar(Scalar<'a>),
    SeqEnd,
    SeqStart,
}

type Placed<'a> = (Item<'a>, Marker);

/// The events of one document in a text.
pub(super) struct Events<'a> {
    parser: Parser<'a, StrInput<'a>>,
    peeked: Option<Placed<'a>>,
    depth: usize,
    anchors: BTreeMap<usize, Rc<[Placed<'a>]>>,
    recordings: Vec<Recording<'a>>,
    replays: Vec<Replay<'a>>,
    copies: usize,
}

/// An anchored collection that has not ended yet.
struct Recording<'a> {
    anchor: usize,
    /// Depth outside of it.
    depth: usize,
    items: Vec<Placed<'a>>,
}

struct Replay<'a> {
    items: Rc<[Placed<'a>]>,
    next: usize,
}

impl<'a> Events<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let options = granit_parser::options! {
            flow_nesting_limit: MAX_DEPTH,
            block_nesting_limit: MAX_DEPTH,
            simple_key_max_lookahead: MAX_KEY_CHARS,
            emit_comments: false,
        };
        Self {
            parser: Parser::new_from_str_with_options(text, options),
            peeked: None,
            depth: 0,
            anchors: BTreeMap::new(),
            recordings: Vec::new(),
            replays: Vec::new(),
            copies: 0,
        }
    }

    /// Moves to the document's root; false when there is none.
    pub(super) fn begin_document(&mut self) -> Result<bool, Fault> {
        loop {
            match self.parser.next_event() {
                None | Some(Ok((Event::StreamEnd, _))) => return Ok(false),
                Some(Err(error)) => return Err(Fault::syntax(&error)),
                Some(Ok((Event::DocumentStart(..), _))) => break,
                Some(Ok(_)) => {}
            }
        }
        Ok(!matches!(self.peek()?, (Item::Scalar(scalar), _) if scalar.is_null()))
    }

    /// Checks that nothing follows the document.
    pub(super) fn end_document(&mut self) -> Result<(), Fault> {
        loop {
            match self.parser.next_event() {
                None | Some(Ok((Event::StreamEnd, _))) => return Ok(()),
                Some(Err(error)) => return Err(Fault::syntax(&error)),
                Some(Ok((Event::DocumentStart(..), span))) => {
                    return Err(Fault::new("a second document, expected one", span.start));
                }
                Some(Ok(_)) => {}
            }
        }
    }

    /// The next event, left in place.
    pub(super) fn peek(&mut self) -> Result<&Placed<'a>, Fault> {
        let placed = match self.peeked.take() {
            Some(placed) => placed,
            None => self.pull()?,
        };
        Ok(self.peeked.insert(placed))
    }

    /// The next event.
    pub(super) fn next(&mut self) -> Result<Placed<'a>, Fault> {
        match self.peeked.take() {
            Some(placed) => Ok(placed),
            None => self.pull(),
        }
    }

    fn pull(&mut self) -> Result<Placed<'a>, Fault> {
        loop {
            if let Some(placed) = self.next_replayed() {
                self.count_copies(1, placed.1)?;
                return self.emit(placed, 0);
            }
            let (event, span) = match self.parser.next_event() {
                Some(Ok(next)) => next,
                Some(Err(error)) => return Err(Fault::syntax(&error)),
                None => return Err(Fault::new("the document ends early", Marker::default())),
            };
            let at = span.start;
            let tag_at = span.tag_start().unwrap_or(at);
            let (item, anchor) = match event {
                Event::Alias(anchor) => {
                    self.replay(anchor, at)?;
                    continue;
                }
                Event::Scalar(text, style, anchor, tag) => {
                    let as_text = check_tag(tag.as_deref(), tag_at)?;
                    let plain = style == ScalarStyle::Plain && !as_text;
                    (Item::Scalar(Scalar { text, plain }), anchor)
                }
                Event::SequenceStart(_, anchor, tag) => {
                    check_tag(tag.as_deref(), tag_at)?;
                    (Item::SeqStart, anchor)
                }
                Event::MappingStart(_, anchor, tag) => {
                    check_tag(tag.as_deref(), tag_at)?;
                    (Item::MapStart, anchor)
                }
                Event::SequenceEnd => (Item::SeqEnd, 0),
                Event::MappingEnd => (Item::MapEnd, 0),
                // Options that are off, and what cannot stand where a value is due.
                Event::Anchor(..)
                | Event::Comment(..)
                | Event::DocumentEnd
                | Event::DocumentStart(..)
                | Event::StreamEnd
                | Event::StreamStart
                | Event::UnresolvedAlias(_) => return Err(Fault::new("expected a value", at)),
                _ => return Err(Fault::new("expected a value", at)),
            };
            return self.emit((item, at), anchor);
        }
    }

    fn next_replayed(&mut self) -> Option<Placed<'a>> {
        while let Some(replay) = self.replays.last_mut() {
            if let Some(placed) = replay.items.get(replay.next) {
                replay.next += 1;
                return Some(placed.clone());
            }
            self.replays.pop();
        }
        None
    }

    fn replay(&mut self, anchor: usize, at: Marker) -> Result<(), Fault> {
        let Some(items) = self.anchors.get(&anchor) else {
            return Err(Fault::new(
                "this alias names something that contains it",
                at,
            ));
        };
        self.replays.push(Replay {
            items: Rc::clone(items),
            next: 0,
        });
        Ok(())
    }

    /// Follows the nesting, and keeps the event for every anchor that is open. `anchor` is the
    /// event's own; the parser counts them from 1.
    fn emit(&mut self, placed: Placed<'a>, anchor: usize) -> Result<Placed<'a>, Fault> {
        match placed.0 {
            Item::MapStart | Item::SeqStart => {
                if anchor > 0 {
                    let depth = self.depth;
                    self.recordings.push(Recording {
                        anchor,
                        depth,
                        items: Vec::new(),
                    });
                }
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    let message = format!("nested deeper than {MAX_DEPTH} levels");
                    return Err(Fault::new(message, placed.1));
                }
            }
            Item::MapEnd | Item::SeqEnd => self.depth = self.depth.saturating_sub(1),
            Item::Scalar(_) if anchor > 0 => {
                self.count_copies(1, placed.1)?;
                self.anchors.insert(anchor, Rc::new([placed.clone()]));
            }
            Item::Scalar(_) => {}
        }
        if !self.recordings.is_empty() {
            self.record(&placed)?;
        }
        Ok(placed)
    }

    fn record(&mut self, placed: &Placed<'a>) -> Result<(), Fault> {
        self.count_copies(self.recordings.len(), placed.1)?;
        for recording in &mut self.recordings {
            recording.items.push(placed.clone());
        }
        let ended = matches!(placed.0, Item::MapEnd | Item::SeqEnd);
        if ended
            && self
                .recordings
                .last()
                .is_some_and(|open| open.depth == self.depth)
            && let Some(done) = self.recordings.pop()
        {
            self.anchors.insert(done.anchor, done.items.into());
        }
        Ok(())
    }

    fn count_copies(&mut self, more: usize, at: Marker) -> Result<(), Fault> {
        self.copies += more;
        if self.copies > MAX_COPIES {
            let message = format!("anchors and aliases multiply beyond {MAX_COPIES} values");
            return Err(Fault::new(message, at));
        }
        Ok(())
    }
}

/// Characters that may precede a `:`; YAML's own bound for a key (section 7.4.2).
const MAX_KEY_CHARS: usize = 1024;

/// Whether `tag` says that a scalar is text.
fn check_tag(tag: Option<&Tag>, at: Marker) -> Result<bool, Fault> {
    let Some(tag) = tag else {
        return Ok(false);
    };
    match tag.core_suffix() {
        Some(kind) => Ok(kind == "str"),
        None if tag.original() == "!" => Ok(true),
        None => Err(Fault::new(
            format!("the tag `{}` is not known here", tag.original()),
            at,
        )),
    }
}
