//! Rules of our own in nf_tables (nfnetlink): a table with base chains and rules of a few expressions.
//!
//! ```text
//!   batch begin │ add table │ delete table │ add table │ add chain … │ add rule … │ batch end
//! ```
//!
//! Only what NOTRACK and masquerade rules need; what concerns the rules of others is in `ruleset`. Chains
//! and rules are kept as the attributes that the kernel is sent, and that it has to return. Numbers are
//! from include/uapi/linux/netfilter/{nfnetlink,nf_tables}.h; integers travel in network byte order.

pub(crate) mod ruleset;

use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::{
    attributes::{
        self, ACK, APPEND, CREATE, DUMP, Request, Writer, attribute, attributes, encoded,
    },
    error::{NetlinkError, NftablesError, lacks_nf_tables},
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

/// `NFTA_TABLE_NAME`, `NFTA_CHAIN_TABLE` and `NFTA_RULE_TABLE`.
const NFTA_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
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
/// `struct nfgenmsg`: family, version, resource.
const HEADER: [u8; 4] = [NFPROTO_INET, 0, 0, 0];
/// The resource of a batch is the subsystem it is for, in network order.
const BATCH_HEADER: [u8; 4] = {
    let [high, low] = SUBSYSTEM.to_be_bytes();
    [0, 0, high, low]
};
const NF_ACCEPT: u32 = 1;
/// `NFT_REG_1`, the register every expression here uses; the kernel reports it as this number.
const REGISTER: u32 = 1;

/// `NFT_CMP_EQ` and `NFT_CMP_NEQ`.
pub(crate) const EQUAL: u32 = 0;
pub(crate) const NOT_EQUAL: u32 = 1;
/// `NFT_META_IIFNAME` and `NFT_META_OIFNAME`.
pub(crate) const META_IIFNAME: u32 = 6;
pub(crate) const META_OIFNAME: u32 = 7;
/// `NFT_META_NFPROTO` and `NFT_META_L4PROTO`.
pub(crate) const META_NFPROTO: u32 = 15;
pub(crate) const META_L4PROTO: u32 = 16;
/// `NFT_PAYLOAD_NETWORK_HEADER` and `NFT_PAYLOAD_TRANSPORT_HEADER`.
pub(crate) const NETWORK_HEADER: u32 = 1;
pub(crate) const TRANSPORT_HEADER: u32 = 2;

/// An inet table that belongs to its caller alone, with all that is to be in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    table: String,
    /// What the rules are, for errors.
    what: &'static str,
    /// The attributes of each chain.
    chains: Vec<Vec<u8>>,
    /// The attributes of each rule.
    pub(crate) rules: Vec<Vec<u8>>,
}

impl Rules {
    /// No rules yet, in the table `table` (1 to 255 bytes, no zero byte).
    pub(crate) fn new(table: impl Into<String>, what: &'static str) -> Self {
        Self {
            table: table.into(),
            what,
            chains: Vec::new(),
            rules: Vec::new(),
        }
    }

    /// Adds a base chain of type `kind` at the hook of that number; those of a lower priority run
    /// earlier.
    pub(crate) fn add_chain(&mut self, name: &str, kind: &str, hook: u32, priority: i32) {
        self.chains.push(encoded(|out| {
            out.put_str(NFTA_TABLE, &self.table);
            out.put_str(NFTA_CHAIN_NAME, name);
            out.nest(NFTA_CHAIN_HOOK, |out| {
                out.put_u32_be(NFTA_HOOK_HOOKNUM, hook);
                out.put_u32_be(NFTA_HOOK_PRIORITY, priority.cast_unsigned());
            });
            out.put_u32_be(NFTA_CHAIN_POLICY, NF_ACCEPT);
            out.put_str(NFTA_CHAIN_TYPE, kind);
        }));
    }

    /// Adds a rule to a chain; `expressions` writes its expressions in order.
    pub(crate) fn add_rule(&mut self, chain: &str, expressions: impl FnOnce(&mut Writer<'_>)) {
        self.rules.push(encoded(|out| {
            out.put_str(NFTA_TABLE, &self.table);
            out.put_str(NFTA_RULE_CHAIN, chain);
            out.nest(NFTA_RULE_EXPRESSIONS, expressions);
        }));
    }

    /// Makes the table hold exactly these rules, in one atomic step, and reads it back; calling it
    /// again is harmless. Without rules the table is removed. Dropping the future does not undo the
    /// batch, which the kernel has or has not accepted whole.
    ///
    /// # Errors
    /// `NotSupported` on a kernel without nf_tables or what the rules need of it; `Permission`
    /// without `CAP_NET_ADMIN`; `NotInPlace`; `Other`.
    pub async fn install(&self) -> Result<(), NftablesError> {
        if self.rules.is_empty() {
            return self.remove().await;
        }
        let replaced = async {
            let mut connection = connect()?;
            let request = self.replacement(connection.request());
            connection.acknowledged(&request).await
        };
        replaced.await.map_err(self.failed("installing"))?;
        if self.installed().await? {
            return Ok(());
        }
        Err(NftablesError::NotInPlace {
            what: self.what,
            table: self.table.clone(),
        })
    }

    /// Whether the table holds exactly these rules, in whatever order, as the kernel tells. Without
    /// rules there is to be no table.
    ///
    /// # Errors
    /// As for [`Rules::install`], but for `NotInPlace`.
    pub async fn installed(&self) -> Result<bool, NftablesError> {
        let found = self.found().await.map_err(self.failed("reading"))?;
        Ok(same(&found.0, &self.chains, includes) && same(&found.1, &self.rules, same_rule))
    }

    /// Removes the table. That there is none, or no nf_tables at all, is success. Connections that
    /// the rules have decided about stay as they are.
    ///
    /// # Errors
    /// `Permission`, `Other`.
    pub async fn remove(&self) -> Result<(), NftablesError> {
        let removed = async {
            let mut connection = connect()?;
            // `ENOENT` when there is none.
            let request = begin(connection.request());
            let request = request.message(DELETE_TABLE, ACK, &HEADER, |out| self.put_name(out));
            connection.acknowledged(&end(request)).await
        };
        match removed.await {
            Err(source) if lacks_nf_tables(source.errno()) => Ok(()),
            answer => answer.map_err(self.failed("removing")),
        }
    }

    /// The attributes of the chains and of the rules that are in the table.
    async fn found(&self) -> Result<(Vec<Vec<u8>>, Vec<Vec<u8>>), NetlinkError> {
        let mut connection = connect()?;
        let decode = |payload: &[u8]| of_table(payload, &self.table).map(<[u8]>::to_vec);
        let all = |request: Request| request.message(GET_CHAIN, DUMP, &HEADER, |_| {});
        let chains = connection.dump(all, NEW_CHAIN, decode).await?;
        let own =
            |request: Request| request.message(GET_RULE, DUMP, &HEADER, |out| self.put_name(out));
        let rules = connection.dump(own, NEW_RULE, decode).await?;
        Ok((chains, rules))
    }

    /// A batch that makes the table hold exactly these rules, whatever it held.
    fn replacement(&self, request: Request) -> Request {
        // Adding first lets the deletion succeed where there was no table yet.
        let mut request = begin(request)
            .message(NEW_TABLE, CREATE, &HEADER, |out| self.put_name(out))
            .message(DELETE_TABLE, 0, &HEADER, |out| self.put_name(out))
            .message(NEW_TABLE, CREATE, &HEADER, |out| self.put_name(out));
        for chain in &self.chains {
            request = request.message(NEW_CHAIN, CREATE, &HEADER, |out| out.append(chain));
        }
        for (at, rule) in self.rules.iter().enumerate() {
            // Refusals are always told; the acknowledgement of the last rule tells of success.
            let last = at + 1 == self.rules.len();
            let flags = CREATE | APPEND | if last { ACK } else { 0 };
            request = request.message(NEW_RULE, flags, &HEADER, |out| out.append(rule));
        }
        end(request)
    }

    fn put_name(&self, out: &mut Writer<'_>) {
        out.put_str(NFTA_TABLE, &self.table);
    }

    /// Names a failed request.
    fn failed(&self, doing: &str) -> impl FnOnce(NetlinkError) -> NftablesError {
        let attempt = format!("{doing} {}", self.what);
        |source| NftablesError::netlink(attempt, source)
    }
}

/// Goes on if a property of the packet (`NFT_META_*`) compares so with `value`.
pub(crate) fn meta(out: &mut Writer<'_>, key: u32, operator: u32, value: &[u8]) {
    put_expression(out, "meta", |out| {
        out.put_u32_be(NFTA_META_KEY, key);
        out.put_u32_be(NFTA_META_DREG, REGISTER);
    });
    put_comparison(out, operator, value);
}

/// Goes on if the packet has `value` at `offset` of the header `base`.
pub(crate) fn payload(out: &mut Writer<'_>, base: u32, offset: u32, value: &[u8]) {
    let length = u32::try_from(value.len()).expect("a field of a header");
    put_expression(out, "payload", |out| {
        out.put_u32_be(NFTA_PAYLOAD_DREG, REGISTER);
        out.put_u32_be(NFTA_PAYLOAD_BASE, base);
        out.put_u32_be(NFTA_PAYLOAD_OFFSET, offset);
        out.put_u32_be(NFTA_PAYLOAD_LEN, length);
    });
    put_comparison(out, EQUAL, value);
}

/// Gives the connection the leaving device's address as its source; `flags` are `NF_NAT_RANGE_*`.
pub(crate) fn masquerade(out: &mut Writer<'_>, flags: u32) {
    put_expression(out, "masq", |out| out.put_u32_be(NFTA_MASQ_FLAGS, flags));
}

/// Keeps the packet from being tracked.
pub(crate) fn notrack(out: &mut Writer<'_>) {
    out.nest(NFTA_LIST_ELEM, |out| out.put_str(NFTA_EXPR_NAME, "notrack"));
}

fn put_comparison(out: &mut Writer<'_>, operator: u32, value: &[u8]) {
    put_expression(out, "cmp", |out| {
        out.put_u32_be(NFTA_CMP_SREG, REGISTER);
        out.put_u32_be(NFTA_CMP_OP, operator);
        out.nest(NFTA_CMP_DATA, |out| out.put(NFTA_DATA_VALUE, value));
    });
}

fn put_expression(out: &mut Writer<'_>, name: &str, data: impl FnOnce(&mut Writer<'_>)) {
    out.nest(NFTA_LIST_ELEM, |out| {
        out.put_str(NFTA_EXPR_NAME, name);
        out.nest(NFTA_EXPR_DATA, data);
    });
}

fn connect() -> Result<Connection, NetlinkError> {
    Connection::open(NETLINK_NETFILTER, 0)
}

fn begin(request: Request) -> Request {
    request.message(BATCH_BEGIN, 0, &BATCH_HEADER, |_| {})
}

fn end(request: Request) -> Request {
    request.message(BATCH_END, 0, &BATCH_HEADER, |_| {})
}

/// The attributes in a message of a dump, if it is about the inet table `table`.
fn of_table<'a>(payload: &'a [u8], table: &str) -> Option<&'a [u8]> {
    let found = payload.get(HEADER.len()..)?;
    let named = attribute(found, NFTA_TABLE).and_then(attributes::text);
    (payload.first() == Some(&NFPROTO_INET) && named == Some(table)).then_some(found)
}

/// Whether both hold the same, by `equal`, in whatever order.
fn same(found: &[Vec<u8>], wanted: &[Vec<u8>], equal: fn(&[u8], &[u8]) -> bool) -> bool {
    let is_found = |wanted: &Vec<u8>| found.iter().any(|found| equal(found, wanted));
    let is_wanted = |found: &Vec<u8>| wanted.iter().any(|wanted| equal(found, wanted));
    wanted.iter().all(is_found) && found.iter().all(is_wanted)
}

/// Whether `found` has every attribute of `wanted`; it may have more, such as counters.
fn includes(found: &[u8], wanted: &[u8]) -> bool {
    attributes(wanted).all(|(kind, value)| attribute(found, kind) == Some(value))
}

/// Whether a rule is in the same chain and has the same expressions.
fn same_rule(found: &[u8], wanted: &[u8]) -> bool {
    let mut pairs = expressions(found).zip(expressions(wanted));
    part(found, NFTA_RULE_CHAIN) == part(wanted, NFTA_RULE_CHAIN)
        && expressions(found).count() == expressions(wanted).count()
        && pairs.all(|((_, found), (_, wanted))| {
            part(found, NFTA_EXPR_NAME) == part(wanted, NFTA_EXPR_NAME)
                && includes(part(found, NFTA_EXPR_DATA), part(wanted, NFTA_EXPR_DATA))
        })
}

fn expressions(rule: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    attributes(part(rule, NFTA_RULE_EXPRESSIONS))
}

fn part(bytes: &[u8], kind: u16) -> &[u8] {
    attribute(bytes, kind).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::attributes::{Message, messages};

    fn to_https(out: &mut Writer<'_>) {
        meta(out, META_L4PROTO, EQUAL, &[6]);
        payload(out, TRANSPORT_HEADER, 2, &[1, 187]);
        notrack(out);
    }

    /// Two chains with a rule each.
    fn sample() -> Rules {
        let mut rules = Rules::new("rhizome", "rules");
        rules.add_chain("output", "filter", 3, -300);
        rules.add_chain("postrouting", "nat", 4, 100);
        rules.add_rule("output", to_https);
        rules.add_rule("postrouting", |out| {
            meta(out, META_IIFNAME, NOT_EQUAL, b"rhizome0");
            masquerade(out, 16);
        });
        rules
    }

    #[test]
    fn table_reads_back_as_written() {
        let rules = sample();

        let request = rules.replacement(Request::new(1));

        let found = sent(&request);
        for (kind, wanted) in [(NEW_CHAIN, &rules.chains), (NEW_RULE, &rules.rules)] {
            let read = of(&found, kind).filter_map(|payload| of_table(payload, "rhizome"));
            assert_eq!(read.collect::<Vec<_>>(), *wanted);
        }
        assert!(of(&found, NEW_RULE).all(|payload| of_table(payload, "other").is_none()));
    }

    #[test]
    fn only_equal_chains_and_rules_are_ours() {
        let rules = sample();
        let same_rules = |found: &[Vec<u8>]| same(found, &rules.rules, same_rule);
        let mut reversed = rules.rules.clone();
        reversed.reverse();
        let counted = |rule: &Vec<u8>| [&rule[..], &encoded(|out| out.put_u32_be(7, 1))].concat();
        assert!(same_rules(&reversed));
        assert!(same_rules(
            &reversed.iter().map(counted).collect::<Vec<_>>()
        ));
        assert!(!same_rules(&rules.rules[..1]));
        let mut other = Rules::new("rhizome", "rules");
        other.add_rule("output", |out| payload(out, TRANSPORT_HEADER, 2, &[1, 188]));
        other.add_rule("output", |out| {
            to_https(out);
            notrack(out);
        });
        other.add_rule("input", to_https);
        other.add_chain("output", "filter", 3, -200);
        for rule in &other.rules {
            assert!(!same_rule(rule, &rules.rules[0]));
            let mut more = rules.rules.clone();
            more.push(rule.clone());
            assert!(!same_rules(&more));
        }
        assert!(!includes(&other.chains[0], &rules.chains[0]));
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
        let request = sample().replacement(Request::new(1));

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
                NEW_CHAIN,
                NEW_RULE,
                NEW_RULE,
                BATCH_END
            ]
        );
        assert_eq!(found[0].payload, [0, 0, 0, 10]);
        let asked = found.iter().map(|message| message.flags & ACK != 0);
        assert_eq!(asked.clone().filter(|asked| *asked).count(), 1);
        assert_eq!(asked.clone().nth(7), Some(true));
    }

    /// What Linux 6.18 returned (`NFT_MSG_GETRULE`) for `meta l4proto tcp tcp dport 443 notrack`
    /// set by nft 1.0.6.
    const KERNEL_EXPRESSIONS: &str = include_str!("nft/expressions.hex");

    #[test]
    fn expressions_encode_as_kernel_returns_them() {
        let digits = KERNEL_EXPRESSIONS.chars().filter_map(|c| c.to_digit(16));
        let digits: Vec<_> = digits.collect();
        let returned: Vec<_> = digits
            .chunks(2)
            .map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap())
            .collect();

        assert_eq!(encoded(to_https), returned);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_do_not(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = of_table(&bytes, "rhizome");
            prop_assert!(!same_rule(&bytes, &sample().rules[0]));
        }
    }
}
