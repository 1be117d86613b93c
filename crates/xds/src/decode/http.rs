//! Routes of HTTP: those of CONNECT requests, in the order in which they are tried.

use prost_types::Any;
use route::IpPrefix;

use crate::decode::fault::{Fault, Within};
use crate::decode::listener::Limits;
use crate::decode::parts::{self, Matcher};
use crate::proto::{
    Filter4, HeaderMatcher, HeaderPattern, PrincipalIdentifier, Rbac, RbacFilter, RbacPerRoute,
    RbacPolicy, Route, RouteAction, RouteConfiguration, UpgradeConfig, VirtualHost, kind,
};

/// Rules of one configuration that match patterns instead of one value: each is held against every
/// cluster's name.
const MAX_PATTERNS: usize = 64;

/// The rules by which CONNECT requests are led; the first that matches counts.
#[derive(Debug, Default)]
pub(super) struct ConnectRules {
    pub(super) rules: Vec<Rule>,
}

/// One rule.
#[derive(Debug)]
pub(super) struct Rule {
    /// Where it stands, as in a path.
    pub(super) place: String,
    /// What the header's value has to be.
    pub(super) matcher: Matcher,
    pub(super) action: Action,
    /// Clients that may use it; empty = all.
    pub(super) allow_sources: Vec<IpPrefix>,
    pub(super) limits: Limits,
}

/// What is done with a CONNECT request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Action {
    /// It is answered, and goes nowhere.
    Answer,
    /// It goes to this cluster.
    Cluster(String),
    /// It goes to the cluster that the header names.
    ClusterHeader,
}

impl Rule {
    /// Returns whether both rules route and admit alike.
    pub(super) fn does_as(&self, other: &Self) -> bool {
        self.action == other.action
            && self.allow_sources == other.allow_sources
            && self.limits == other.limits
    }
}

impl ConnectRules {
    pub(super) fn read(message: &RouteConfiguration) -> Result<Self, Fault> {
        let mut read = Self::default();
        for (index, host) in message.virtual_hosts.iter().enumerate() {
            let place = format!("virtual_hosts[{index}]");
            read.host(host, &place).within(&place)?;
        }
        let rules = read.rules.iter();
        let patterns = rules.filter(|rule| !matches!(rule.matcher, Matcher::Exact(_)));
        if patterns.count() > MAX_PATTERNS {
            let why = format!("more than {MAX_PATTERNS} routes match patterns");
            return Err(Fault::at("virtual_hosts", why));
        }
        Ok(read)
    }

    fn host(&mut self, message: &VirtualHost, place: &str) -> Result<(), Fault> {
        // What a CONNECT request is addressed to does not count, only its header does.
        if message.domains != ["*"] {
            return Err(Fault::at("domains", "only \"*\" is understood"));
        }
        if message.require_tls != 0 {
            return Err(Fault::at("require_tls", "it is not understood"));
        }
        for (index, route) in message.routes.iter().enumerate() {
            let step = format!("routes[{index}]");
            if let Some(mut rule) = read_route(route).within(&step)? {
                rule.place = format!("{place}.{step}");
                self.rules.push(rule);
            }
        }
        Ok(())
    }
}

/// Reads a route; `None` when it is not for CONNECT requests, all of which are answered alike.
fn read_route(message: &Route) -> Result<Option<Rule>, Fault> {
    let matches = message.matches.as_ref();
    let matches = matches.ok_or_else(|| Fault::at("match", "it is missing"))?;
    if matches.tls_context.is_some() {
        return Err(Fault::at(
            "match.tls_context",
            "the field is not understood",
        ));
    }
    let answered = message.redirect.is_some() || message.direct_response.is_some();
    if matches.connect_matcher.is_none() {
        return match (&message.route, answered) {
            (None, true) => Ok(None),
            (Some(_), _) => Err(Fault::at("route", "only CONNECT requests are led on")),
            (None, false) => Err(Fault::new("it has no action")),
        };
    }
    let header = match matches.headers.as_slice() {
        [] => None,
        [header] => Some(header),
        [_, _, ..] => return Err(Fault::at("match.headers", "only one is understood")),
    };
    let matcher = header.map(read_header).transpose();
    let matcher = matcher.within("match.headers[0]")?;
    let matcher = matcher.unwrap_or(Matcher::Any);
    let (action, limits) = match (&message.route, answered) {
        (Some(route), _) => read_action(route, header, &matcher).within("route")?,
        (None, true) => (Action::Answer, Limits::default()),
        (None, false) => return Err(Fault::new("it has no action")),
    };
    let mut allow_sources = None;
    for (index, (name, any)) in message.typed_per_filter_config.iter().enumerate() {
        let step = format_args!("typed_per_filter_config[{index}]({name})");
        let Some(sources) = read_sources(any).within(step)? else {
            continue;
        };
        if allow_sources.replace(sources).is_some() {
            return Err(Fault::at(step, "only one RBACPerRoute is understood"));
        }
    }
    let allow_sources = allow_sources.unwrap_or_default();
    Ok(Some(Rule {
        place: String::new(),
        matcher,
        action,
        allow_sources,
        limits,
    }))
}

fn read_header(message: &HeaderMatcher) -> Result<Matcher, Fault> {
    if message.name.is_empty() {
        return Err(Fault::at("name", "it is empty"));
    }
    if message.invert_match {
        return Err(Fault::at("invert_match", "it is not understood"));
    }
    match &message.pattern {
        Some(HeaderPattern::Exact(text)) => {
            parts::name(text).map(Matcher::Exact).within("exact_match")
        }
        Some(HeaderPattern::String(matcher)) => {
            parts::string_matcher(matcher).within("string_match")
        }
        None | Some(HeaderPattern::Present(true)) => Ok(Matcher::Any),
        Some(HeaderPattern::Present(false)) => {
            Err(Fault::at("present_match", "false is not understood"))
        }
        Some(HeaderPattern::Prefix(text)) => Matcher::literal(("", text, ".*"), false),
        Some(HeaderPattern::Suffix(text)) => Matcher::literal((".*", text, ""), false),
        Some(HeaderPattern::Contains(text)) => Matcher::literal((".*", text, ".*"), false),
        Some(HeaderPattern::SafeRegex(regex)) => parts::regex(regex).within("safe_regex_match"),
    }
}

fn read_action(
    message: &RouteAction,
    header: Option<&HeaderMatcher>,
    matcher: &Matcher,
) -> Result<(Action, Limits), Fault> {
    let Some(header) = header else {
        return Err(Fault::new("without a header to go by it is not understood"));
    };
    let action = match (&message.cluster, &message.cluster_header) {
        (Some(cluster), None) if matches!(matcher, Matcher::Exact(_)) => {
            Action::Cluster(parts::name(cluster).within("cluster")?)
        }
        (Some(_), None) => {
            let why = "for a pattern of values it is not understood; cluster_header is";
            return Err(Fault::at("cluster", why));
        }
        (None, Some(name)) if name.eq_ignore_ascii_case(&header.name) => Action::ClusterHeader,
        (None, Some(_)) => {
            let why = "it is another header than the one that is matched";
            return Err(Fault::at("cluster_header", why));
        }
        (Some(_), Some(_)) | (None, None) => return Err(Fault::new("it leads nowhere")),
    };
    check_upgrades(&message.upgrade_configs)?;
    let age = message.max_stream_duration;
    let age = age.and_then(|age| age.max_stream_duration);
    let retries = message.retry_policy.as_ref();
    Ok((
        action,
        Limits {
            idle_timeout: parts::some_duration("idle_timeout", message.idle_timeout)?,
            max_connection_age: parts::some_duration("max_stream_duration", age)?,
            // 1 is the API's default.
            retries: retries.map(|policy| policy.num_retries.unwrap_or(1)),
        },
    ))
}

/// Checks that a CONNECT request ends at the gateway, and what it carries goes on.
fn check_upgrades(configs: &[UpgradeConfig]) -> Result<(), Fault> {
    for (index, config) in configs.iter().enumerate() {
        let step = format_args!("upgrade_configs[{index}]");
        if !config.upgrade_type.eq_ignore_ascii_case("CONNECT") {
            continue;
        }
        return match config.connect_config {
            None => Err(Fault::at(
                step,
                "without connect_config it is not understood",
            )),
            Some(connect) if connect.allow_post => {
                Err(Fault::at("connect_config.allow_post", "it is not understood").within(step))
            }
            Some(_) if config.enabled == Some(false) => {
                Err(Fault::at("enabled", "CONNECT would be refused").within(step))
            }
            Some(_) => Ok(()),
        };
    }
    Err(Fault::at("upgrade_configs", "CONNECT is missing"))
}

/// Checks a filter of the connection manager: access is controlled per route only.
pub(super) fn check_filter(filter: &Filter4) -> Result<(), Fault> {
    let any = filter.typed_config.as_ref();
    let any = any.ok_or_else(|| Fault::new("it has no typed_config"))?;
    match parts::unpack::<RbacFilter>(any, kind::RBAC)? {
        Some(rbac) if rbac.rules.is_some() => {
            let why = "rules for all routes are not understood";
            Err(Fault::at("typed_config(RBAC).rules", why))
        }
        Some(_) | None => Ok(()),
    }
}

/// Reads who may use a route; empty = all. `None` when it says nothing of that.
fn read_sources(any: &Any) -> Result<Option<Vec<IpPrefix>>, Fault> {
    let Some(message) = parts::unpack::<RbacPerRoute>(any, kind::RBAC_PER_ROUTE)? else {
        return Ok(None);
    };
    let rules = message.rbac.and_then(|rbac| rbac.rules);
    // Without rules all clients are admitted, which is more likely an omission than intent.
    let rules = rules.ok_or_else(|| Fault::at("rbac.rules", "it is missing"))?;
    read_rules(&rules).map(Some).within("rbac.rules")
}

fn read_rules(rules: &Rbac) -> Result<Vec<IpPrefix>, Fault> {
    if rules.action != 0 {
        return Err(Fault::at("action", "only ALLOW is understood"));
    }
    let mut sources = Vec::new();
    let mut admits_all = false;
    for (name, policy) in &rules.policies {
        let step = format_args!("policies[{name:?}]");
        admits_all |= read_policy(policy, &mut sources).within(step)?;
    }
    if admits_all {
        sources.clear();
    } else if sources.is_empty() {
        return Err(Fault::at("policies", "no client would be admitted"));
    }
    Ok(sources)
}

/// Reads the clients that a policy admits; returns whether it admits all.
fn read_policy(policy: &RbacPolicy, sources: &mut Vec<IpPrefix>) -> Result<bool, Fault> {
    let any = |permission: &crate::proto::RbacPermission| permission.any == Some(true);
    if policy.permissions.is_empty() || !policy.permissions.iter().all(any) {
        return Err(Fault::at("permissions", "only any is understood"));
    }
    let mut admits_all = false;
    for (index, principal) in policy.principals.iter().enumerate() {
        match &principal.identifier {
            Some(PrincipalIdentifier::Any(true)) => admits_all = true,
            Some(
                PrincipalIdentifier::DirectRemoteIp(range) | PrincipalIdentifier::RemoteIp(range),
            ) => {
                let step = format_args!("principals[{index}]");
                sources.push(parts::prefix(range).within(step)?);
            }
            None | Some(PrincipalIdentifier::Any(false)) => {
                let step = format_args!("principals[{index}]");
                return Err(Fault::at(step, "it matches no client"));
            }
        }
    }
    Ok(admits_all)
}
