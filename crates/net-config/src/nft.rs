//! nf_tables messages (nfnetlink): a table with base chains and rules of a few expressions.
//!
//! ```text
//!   batch begin │ add table │ delete table │ add table │ add chain … │ add rule … │ batch end
//! ```
//!
//! Only what [`NoTrack`](crate::NoTrack) and [`Masquerade`](crate::Masquerade) need; what concerns the
//! rules of others is in `ruleset`. Numbers are from
//! include/uapi/linux/netfilter/{nfnetlink,nf_tables}.h; integers travel in network byte order.

pub(crate) mod ruleset;

use std::collections::BTreeSet;

use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::{
    attributes::{self, ACK, APPEND, CREATE, DUMP, Request, Writer, attribute, attributes},
    error::{NetlinkError, lacks_nf_tables},
    netlink::Connection,
};

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;

const NEW_TABLE: u16 = SUBSYSTEM << 8;
const DELETE_TABLE: u16 = (SUBSYSTEM << 8) | 2;
const NEW_CHAIN: u16 = (SUBSYSTEM << 8) | 3;
const GET_CHAIN: u16 = (SUBSYSTEM << 8) | 4;
const NEW_RULE: u16 = (SUBSYSTEM << 8) | 6;
const GET_RULE: u16 = (SUBSYSTEM << 8) | 7;

const NFTA_TABLE_NAME: u16 = 1;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_META_DREG: u16 = 1;
const NFTA_META_KEY: u16 = 2;
const NFTA_CMP_SREG: u16 = 1;
const NFTA_CMP_OP: u16 = 2;
const NFTA_CMP_DATA: u16 = 3;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_MASQ_FLAGS: u16 = 1;
const NFTA_PAYLOAD_DREG: u16 = 1;
const NFTA_PAYLOAD_BASE: u16 = 2;
const NFTA_PAYLOAD_OFFSET: u16 = 3;
const NFTA_PAYLOAD_LEN: u16 = 4;

const NFPROTO_INET: u8 = 1;
const NF_ACCEPT: u32 = 1;
/// `NFT_REG_1`, the register every expression here uses; the kernel reports it as this number.
const REGISTER: u32 = 1;
const CMP_EQ: u32 = 0;
const CMP_NEQ: u32 = 1;
/// `IFNAMSIZ`, terminating zero included.
const DEVICE_NAME: usize = 16;

/// Where a base chain hooks in, and before whom (lower runs earlier).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hook {
    pub(crate) number: u32,
    pub(crate) priority: i32,
}

/// What a base chain is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ChainKind {
    Filter,
    Nat,
}

impl ChainKind {
    /// The kernel's name for it.
    fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }
}

/// A base chain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Chain {
    pub(crate) name: String,
    pub(crate) kind: ChainKind,
    pub(crate) hook: Hook,
}

/// A rule: its chain and its expressions in order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rule {
    pub(crate) chain: String,
    pub(crate) expressions: Vec<Expression>,
}

/// One step of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Expression {
    /// Goes on if the register's first bytes are these.
    Equal(Vec<u8>),
    /// Gives the connection the leaving device's address as its source; `flags` are
    /// `NF_NAT_RANGE_*`.
    Masquerade { flags: u32 },
    /// Loads a property of the packet into the register.
    Meta(u32),
    /// Goes on if the register's first bytes are not these.
    NotEqual(Vec<u8>),
    /// Keeps the packet from being tracked.
    NoTrack,
    /// One that this crate never writes.
    Other(String),
    /// Loads bytes of the packet into the register.
    Payload { base: u32, offset: u32, length: u32 },
}

/// `NFT_META_IIFNAME` and `NFT_META_OIFNAME`, compared with [`device_name`].
pub(crate) const META_IIFNAME: u32 = 6;
pub(crate) const META_OIFNAME: u32 = 7;
/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`.
pub(crate) const RANDOM_PORTS: u32 = 1 << 4;
/// `NFT_META_NFPROTO` and `NFT_META_L4PROTO`.
pub(crate) const META_NFPROTO: u32 = 15;
pub(crate) const META_L4PROTO: u32 = 16;
/// `NFT_PAYLOAD_NETWORK_HEADER` and `NFT_PAYLOAD_TRANSPORT_HEADER`.
pub(crate) const NETWORK_HEADER: u32 = 1;
pub(crate) const TRANSPORT_HEADER: u32 = 2;

/// A device's name as the register holds it.
pub(crate) fn device_name(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(DEVICE_NAME, 0);
    bytes
}

/// An inet table that belongs to one caller alone, with all that is to be in it.
#[derive(Debug)]
pub(crate) struct Table<'a> {
    pub(crate) name: &'a str,
    pub(crate) chains: Vec<Chain>,
    pub(crate) rules: Vec<Rule>,
}

impl Table<'_> {
    /// Makes the table hold exactly this, in one atomic step. Dropping the future does not undo the
    /// batch, which the kernel has or has not taken whole.
    pub(crate) async fn install(&self) -> Result<(), NetlinkError> {
        let mut connection = connect()?;
        let request = replace_table(connection.request(), self.name, &self.chains, &self.rules);
        connection.acknowledged(&request).await
    }

    /// Whether the table holds exactly this, in whatever order, as the kernel tells. Without chains
    /// there is to be no table.
    pub(crate) async fn installed(&self) -> Result<bool, NetlinkError> {
        let mut connection = connect()?;
        let chains = connection
            .dump(
                |request| request.message(GET_CHAIN, DUMP, &header(), |_| {}),
                NEW_CHAIN,
                |payload| decode_chain(payload, self.name),
            )
            .await?;
        let rules = connection
            .dump(
                |request| {
                    request.message(GET_RULE, DUMP, &header(), |out| {
                        out.put_str(NFTA_RULE_TABLE, self.name);
                    })
                },
                NEW_RULE,
                |payload| decode_rule(payload, self.name),
            )
            .await?;
        Ok(same(&chains, &self.chains) && same(&rules, &self.rules))
    }

    /// Removes the table. That there is none, or no nf_tables at all, is success.
    pub(crate) async fn remove(&self) -> Result<(), NetlinkError> {
        let removed = async {
            let mut connection = connect()?;
            let request = delete_table(connection.request(), self.name);
            connection.acknowledged(&request).await
        };
        match removed.await {
            Err(source) if lacks_nf_tables(source.errno()) => Ok(()),
            other => other,
        }
    }
}

fn connect() -> Result<Connection, NetlinkError> {
    Connection::open(NETLINK_NETFILTER, 0)
}

fn same<T: Ord>(found: &[T], wanted: &[T]) -> bool {
    found.iter().collect::<BTreeSet<_>>() == wanted.iter().collect()
}

/// A batch that makes inet table `table` hold exactly `chains` and `rules`, whatever it held.
fn replace_table(request: Request, table: &str, chains: &[Chain], rules: &[Rule]) -> Request {
    let named = |out: &mut Writer<'_>| out.put_str(NFTA_TABLE_NAME, table);
    // Adding first lets the deletion succeed where there was no table yet.
    let mut request = begin(request)
        .message(NEW_TABLE, CREATE, &header(), named)
        .message(DELETE_TABLE, 0, &header(), named)
        .message(NEW_TABLE, CREATE, &header(), named);
    for chain in chains {
        request = request.message(NEW_CHAIN, CREATE, &header(), |out| {
            put_chain(out, table, chain)
        });
    }
    for (at, rule) in rules.iter().enumerate() {
        // Refusals are always told; the acknowledgement of the last rule tells of success.
        let flags = if at + 1 == rules.len() {
            CREATE | APPEND | ACK
        } else {
            CREATE | APPEND
        };
        request = request.message(NEW_RULE, flags, &header(), |out| put_rule(out, table, rule));
    }
    end(request)
}

/// A batch that deletes inet table `table`; `ENOENT` when there is none.
fn delete_table(request: Request, table: &str) -> Request {
    let request = begin(request).message(DELETE_TABLE, ACK, &header(), |out| {
        out.put_str(NFTA_TABLE_NAME, table);
    });
    end(request)
}

/// The base chain of `table` that a message of a dump describes.
fn decode_chain(payload: &[u8], table: &str) -> Option<Chain> {
    let found = family_payload(payload)?;
    if attribute(found, NFTA_CHAIN_TABLE).and_then(attributes::text) != Some(table) {
        return None;
    }
    let hook = attribute(found, NFTA_CHAIN_HOOK)?;
    let kind = attributes::text(attribute(found, NFTA_CHAIN_TYPE)?)?;
    Some(Chain {
        name: attributes::text(attribute(found, NFTA_CHAIN_NAME)?)?.to_owned(),
        kind: [ChainKind::Filter, ChainKind::Nat]
            .into_iter()
            .find(|known| known.as_str() == kind)?,
        hook: Hook {
            number: attributes::u32_be(attribute(hook, NFTA_HOOK_HOOKNUM)?)?,
            priority: attributes::u32_be(attribute(hook, NFTA_HOOK_PRIORITY)?)?.cast_signed(),
        },
    })
}

/// The rule of `table` that a message of a dump describes.
fn decode_rule(payload: &[u8], table: &str) -> Option<Rule> {
    let found = family_payload(payload)?;
    if attribute(found, NFTA_RULE_TABLE).and_then(attributes::text) != Some(table) {
        return None;
    }
    let elements = attribute(found, NFTA_RULE_EXPRESSIONS).unwrap_or_default();
    Some(Rule {
        chain: attributes::text(attribute(found, NFTA_RULE_CHAIN)?)?.to_owned(),
        expressions: attributes(elements)
            .map(|(_, element)| decode_expression(element))
            .collect(),
    })
}

fn begin(request: Request) -> Request {
    request.message(BATCH_BEGIN, 0, &batch_header(), |_| {})
}

fn end(request: Request) -> Request {
    request.message(BATCH_END, 0, &batch_header(), |_| {})
}

/// `struct nfgenmsg`: family, version, resource.
fn header() -> [u8; 4] {
    [NFPROTO_INET, 0, 0, 0]
}

/// The resource of a batch is the subsystem it is for, in network order.
fn batch_header() -> [u8; 4] {
    let [high, low] = SUBSYSTEM.to_be_bytes();
    [0, 0, high, low]
}

fn put_chain(out: &mut Writer<'_>, table: &str, chain: &Chain) {
    out.put_str(NFTA_CHAIN_TABLE, table);
    out.put_str(NFTA_CHAIN_NAME, &chain.name);
    out.nest(NFTA_CHAIN_HOOK, |out| {
        out.put_u32_be(NFTA_HOOK_HOOKNUM, chain.hook.number);
        out.put_u32_be(NFTA_HOOK_PRIORITY, chain.hook.priority.cast_unsigned());
    });
    out.put_u32_be(NFTA_CHAIN_POLICY, NF_ACCEPT);
    out.put_str(NFTA_CHAIN_TYPE, chain.kind.as_str());
}

fn put_rule(out: &mut Writer<'_>, table: &str, rule: &Rule) {
    out.put_str(NFTA_RULE_TABLE, table);
    out.put_str(NFTA_RULE_CHAIN, &rule.chain);
    out.nest(NFTA_RULE_EXPRESSIONS, |out| {
        for expression in &rule.expressions {
            out.nest(NFTA_LIST_ELEM, |out| put_expression(out, expression));
        }
    });
}

fn put_expression(out: &mut Writer<'_>, expression: &Expression) {
    out.put_str(NFTA_EXPR_NAME, expression.name());
    match expression {
        Expression::Equal(value) => put_comparison(out, CMP_EQ, value),
        Expression::Masquerade { flags } => out.nest(NFTA_EXPR_DATA, |out| {
            out.put_u32_be(NFTA_MASQ_FLAGS, *flags);
        }),
        Expression::Meta(key) => out.nest(NFTA_EXPR_DATA, |out| {
            out.put_u32_be(NFTA_META_KEY, *key);
            out.put_u32_be(NFTA_META_DREG, REGISTER);
        }),
        Expression::NotEqual(value) => put_comparison(out, CMP_NEQ, value),
        Expression::NoTrack | Expression::Other(_) => {}
        Expression::Payload {
            base,
            offset,
            length,
        } => out.nest(NFTA_EXPR_DATA, |out| {
            out.put_u32_be(NFTA_PAYLOAD_DREG, REGISTER);
            out.put_u32_be(NFTA_PAYLOAD_BASE, *base);
            out.put_u32_be(NFTA_PAYLOAD_OFFSET, *offset);
            out.put_u32_be(NFTA_PAYLOAD_LEN, *length);
        }),
    }
}

fn put_comparison(out: &mut Writer<'_>, operator: u32, value: &[u8]) {
    out.nest(NFTA_EXPR_DATA, |out| {
        out.put_u32_be(NFTA_CMP_SREG, REGISTER);
        out.put_u32_be(NFTA_CMP_OP, operator);
        out.nest(NFTA_CMP_DATA, |out| out.put(NFTA_DATA_VALUE, value));
    });
}

/// What follows the header of a message of the inet family.
fn family_payload(payload: &[u8]) -> Option<&[u8]> {
    (*payload.first()? == NFPROTO_INET).then(|| payload.get(4..))?
}

fn decode_expression(element: &[u8]) -> Expression {
    let name = attribute(element, NFTA_EXPR_NAME)
        .and_then(attributes::text)
        .unwrap_or_default();
    let data = attribute(element, NFTA_EXPR_DATA).unwrap_or_default();
    decode_known(name, data).unwrap_or_else(|| Expression::Other(name.to_owned()))
}

fn decode_known(name: &str, data: &[u8]) -> Option<Expression> {
    let number = |kind| attribute(data, kind).and_then(attributes::u32_be);
    match name {
        "cmp" if number(NFTA_CMP_SREG)? == REGISTER => {
            let value = attribute(attribute(data, NFTA_CMP_DATA)?, NFTA_DATA_VALUE)?;
            match number(NFTA_CMP_OP)? {
                CMP_EQ => Some(Expression::Equal(value.to_vec())),
                CMP_NEQ => Some(Expression::NotEqual(value.to_vec())),
                _ => None,
            }
        }
        "masq" => Some(Expression::Masquerade {
            flags: number(NFTA_MASQ_FLAGS).unwrap_or_default(),
        }),
        "meta" if number(NFTA_META_DREG)? == REGISTER => {
            Some(Expression::Meta(number(NFTA_META_KEY)?))
        }
        "notrack" => Some(Expression::NoTrack),
        "payload" if number(NFTA_PAYLOAD_DREG)? == REGISTER => Some(Expression::Payload {
            base: number(NFTA_PAYLOAD_BASE)?,
            offset: number(NFTA_PAYLOAD_OFFSET)?,
            length: number(NFTA_PAYLOAD_LEN)?,
        }),
        _ => None,
    }
}

impl Expression {
    /// The kernel's name for it.
    fn name(&self) -> &str {
        match self {
            Self::Equal(_) | Self::NotEqual(_) => "cmp",
            Self::Masquerade { .. } => "masq",
            Self::Meta(_) => "meta",
            Self::NoTrack => "notrack",
            Self::Other(name) => name,
            Self::Payload { .. } => "payload",
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::attributes::{Message, messages};

    fn every_expression() -> Vec<Expression> {
        vec![
            Expression::Meta(META_L4PROTO),
            Expression::Equal(vec![6]),
            Expression::Payload {
                base: TRANSPORT_HEADER,
                offset: 2,
                length: 2,
            },
            Expression::Equal(vec![1, 187]),
            Expression::NoTrack,
        ]
    }

    fn rule() -> Rule {
        Rule {
            chain: "output".to_owned(),
            expressions: every_expression(),
        }
    }

    fn chain() -> Chain {
        Chain {
            name: "output".to_owned(),
            kind: ChainKind::Filter,
            hook: Hook {
                number: 3,
                priority: -300,
            },
        }
    }

    #[test]
    fn table_reads_back_as_written() {
        let device = device_name("rhizome0");
        let masquerade = Rule {
            chain: "postrouting".to_owned(),
            expressions: vec![
                Expression::Meta(META_IIFNAME),
                Expression::Equal(device.clone()),
                Expression::NotEqual(device),
                Expression::Masquerade {
                    flags: RANDOM_PORTS,
                },
            ],
        };
        let nat = Chain {
            kind: ChainKind::Nat,
            ..chain()
        };
        let (chains, rules) = ([chain(), nat], [rule(), masquerade]);

        let request = replace_table(Request::new(1), "rhizome", &chains, &rules);

        let found = sent(&request);
        let read = of(&found, NEW_CHAIN).filter_map(|payload| decode_chain(payload, "rhizome"));
        assert_eq!(read.collect::<Vec<_>>(), chains);
        let read = of(&found, NEW_RULE).filter_map(|payload| decode_rule(payload, "rhizome"));
        assert_eq!(read.collect::<Vec<_>>(), rules);
        assert!(of(&found, NEW_RULE).all(|payload| decode_rule(payload, "other").is_none()));
    }

    fn sent(request: &Request) -> Vec<Message<'_>> {
        messages(request.bytes()).map(Result::unwrap).collect()
    }

    /// The payloads of that type.
    fn of<'a>(found: &[Message<'a>], kind: u16) -> impl Iterator<Item = &'a [u8]> {
        let found = found.iter().filter(move |message| message.kind == kind);
        found.map(|message| message.payload)
    }

    #[test]
    fn a_batch_replaces_the_table_whole() {
        let request = replace_table(Request::new(1), "rhizome", &[chain()], &[rule(), rule()]);

        let found = sent(&request);

        let kinds: Vec<_> = found.iter().map(|message| message.kind).collect();
        assert_eq!(
            kinds,
            [
                BATCH_BEGIN,
                NEW_TABLE,
                DELETE_TABLE,
                NEW_TABLE,
                NEW_CHAIN,
                NEW_RULE,
                NEW_RULE,
                BATCH_END
            ]
        );
        assert_eq!(found[0].payload, [0, 0, 0, 10]);
        let acknowledged: Vec<_> = found
            .iter()
            .map(|message| message.flags & ACK != 0)
            .collect();
        assert_eq!(acknowledged.iter().filter(|asked| **asked).count(), 1);
        assert!(acknowledged[6]);
    }

    /// What Linux 6.18 returned (`NFT_MSG_GETRULE`) for `meta l4proto tcp tcp dport 443 notrack`
    /// set by nft 1.0.6.
    const KERNEL_EXPRESSIONS: &str = include_str!("nft/expressions.hex");

    #[test]
    fn expressions_are_encoded_as_the_kernel_returns_them() {
        let request = Request::new(1).message(NEW_RULE, 0, &header(), |out| {
            for expression in every_expression() {
                out.nest(NFTA_LIST_ELEM, |out| put_expression(out, &expression));
            }
        });
        let returned = unhex(KERNEL_EXPRESSIONS);

        let decoded: Vec<_> = attributes(&returned)
            .map(|(_, element)| decode_expression(element))
            .collect();

        assert_eq!(sent(&request)[0].payload[4..], returned);
        assert_eq!(decoded, every_expression());
    }

    fn unhex(text: &str) -> Vec<u8> {
        let digits: Vec<_> = text.chars().filter_map(|c| c.to_digit(16)).collect();
        digits
            .chunks(2)
            .map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap())
            .collect()
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_do_not(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = decode_chain(&bytes, "rhizome");
            let _ = decode_rule(&bytes, "rhizome");
        }
    }
}
