//! Updates against a sink that remembers.

use route::{ClusterSpec, EndpointSpec, RouteMatch, RouteSpec};

use super::*;
use crate::client::update::{Response, decode_response};
use crate::decode::{OwnProtocol, Table};
use crate::encode::GatewayParams;
use crate::proto::discovery::{Any, DeltaDiscoveryResponse, DiscoveryResponse, NamedResource};
use crate::resource::Resource;
use crate::resource::ResourceType::{Cluster, ClusterLoadAssignment, Listener};
use crate::scenario::{commands, kind_of, letter_of};

#[derive(Default)]
struct Memory {
    tables: Vec<Table>,
    refuses: bool,
}

impl Sink for Memory {
    fn apply(&mut self, table: Table) -> Result<(), String> {
        if self.refuses {
            return Err("not now".to_owned());
        }
        self.tables.push(table);
        Ok(())
    }

    fn confirmed(&mut self) {}
}

impl Memory {
    /// First labels of server names and the number of endpoints behind each, of the table in effect.
    fn routes(&self) -> Vec<String> {
        let spec = &self.tables.last().unwrap().spec;
        let routes = spec.routes.iter().map(|route| {
            let RouteMatch::ServerNames(names) = &route.matches else {
                panic!("only server names are here");
            };
            let found = spec.clusters.iter().find(|one| one.name == route.cluster);
            let label = names[0].strip_suffix(".example.com").unwrap();
            format!("{label}{}", found.unwrap().endpoints.len())
        });
        let mut routes: Vec<_> = routes.collect();
        routes.sort();
        routes
    }
}

/// The one listener of clients.
fn own() -> OwnListener {
    OwnListener {
        name: "tls".into(),
        port: 443,
        protocol: OwnProtocol::Tls,
    }
}

/// A client of one listener, and where its tables go.
struct Client {
    held: HeldResources,
    sink: Memory,
}

impl Client {
    fn new() -> Self {
        Self {
            held: HeldResources::new(State::default(), vec![own()]),
            sink: Memory::default(),
        }
    }

    fn take(&mut self, updates: &[Update]) -> Vec<Result<(), String>> {
        self.held.settle(updates, &mut self.sink)
    }

    /// Runs the commands of a scenario, see [`Self::step`].
    fn run(&mut self, script: &str) {
        for command in commands(script) {
            self.step(&command.at, command.verb, &command.words);
        }
    }

    /// Runs one command. Types are named by their first letters, `A` is an assignment.
    ///
    /// ```text
    ///   gets C+a-b L+a!why       updates that arrive together, see [`update`]; the second is
    ///                            refused, and its reason has these words, joined by `_`
    ///   refuse, accept           what the sink does
    ///   without missing, more    continues without
    ///   routes a1 b0             routes in effect, with the number of their endpoints
    ///   tables 1                 how many tables were applied
    ///   state current good       all that holds of: current, good (the cache is to have it), waits
    ///   saved C/a                resources that the cache is to have
    ///   wants a                  assignments that are referred to
    ///   kept C/a                 resources that are stored
    /// ```
    fn step(&mut self, at: &str, verb: &str, words: &[&str]) {
        let joined = words.join(" ");
        match (verb, words) {
            ("accept", []) => self.sink.refuses = false,
            ("gets", updates) => {
                let parts = updates
                    .iter()
                    .map(|one| one.split_once('!').unwrap_or((one, "")));
                let parsed: Vec<_> = parts.map(|(one, _)| update(one)).collect();
                for (word, verdict) in updates.iter().zip(self.take(&parsed)) {
                    match (word.split_once('!'), verdict) {
                        (None, verdict) => assert_eq!(verdict, Ok(()), "{at}"),
                        (Some(_), Ok(())) => panic!("{at}: {word} is accepted"),
                        (Some((_, words)), Err(why)) => {
                            assert!(why.contains(&words.replace('_', " ")), "{at}: {why}");
                        }
                    }
                }
            }
            ("kept", _) => assert_eq!(listed(&self.held.state), words, "{at}"),
            ("refuse", []) => self.sink.refuses = true,
            ("routes", _) => assert_eq!(self.sink.routes(), words, "{at}"),
            ("saved", _) => {
                let unsaved = lock(&self.held.unsaved);
                let saved = unsaved.state.as_ref().map(listed).unwrap_or_default();
                assert_eq!(saved, words, "{at}");
            }
            ("state", _) => {
                let unsaved = lock(&self.held.unsaved);
                let good = unsaved.state.as_ref().map(listed) == Some(listed(&self.held.state));
                let holds = [
                    ("current", self.held.is_current()),
                    ("good", good),
                    ("waits", self.held.waits_for_missing()),
                ];
                let holds = holds.iter().filter(|(_, holds)| *holds);
                let holds: Vec<_> = holds.map(|(name, _)| *name).collect();
                assert_eq!(holds, words, "{at}");
            }
            ("tables", [count]) => {
                assert_eq!(self.sink.tables.len().to_string(), **count, "{at}");
            }
            ("wants", _) => {
                let wanted = self.held.state.wanted(ClusterLoadAssignment);
                let wanted: Vec<_> = wanted.into_iter().collect();
                assert_eq!(wanted.join(" "), joined, "{at}");
            }
            ("without", ["missing"]) => {
                self.held.apply_without_missing(&mut self.sink).expect(at);
            }
            ("without", ["more"]) => self.held.apply_without_more(&mut self.sink).expect(at),
            _ => panic!("{at}: no such command"),
        }
    }
}

/// Returns the types and names of a state's resources.
fn listed(state: &State) -> Vec<String> {
    let all = entries(state).into_iter().map(|entry| {
        let kind = ResourceType::from_type_url(&entry.type_url).unwrap();
        format!("{}/{}", letter_of(kind), entry.name)
    });
    all.collect()
}

/// An update by its text: the type, then what is set with `+` and removed with `-`, after `~` when
/// more follows and `=` in the state-of-the-world variant.
///
/// A listener's part of group `b` is `b` when it routes `b.example.com` to the cluster `b`,
/// `b:a>c` when it routes `a.example.com` to `c`, and `?b` when it is malformed.
fn update(text: &str) -> Update {
    let more_follows = text.starts_with('~');
    let listed = text.starts_with('=');
    let text = text.trim_start_matches(['~', '=']);
    let (letter, items) = text.split_at(1);
    let kind = kind_of(letter);
    let (mut set, mut removed) = (Vec::new(), Vec::new());
    // `+a-b` is cut into `+`, `a-`, `b`.
    let pieces: Vec<_> = items.split_inclusive(['+', '-']).collect();
    for item in pieces.windows(2) {
        let name = item[1].trim_end_matches(['+', '-']);
        match (item[0].ends_with('+'), kind) {
            (false, Listener) => removed.push(format!("tls|{name}")),
            (false, _) => removed.push(name.to_owned()),
            (true, Listener) => set.extend(listener_part(name)),
            (true, _) => set.extend(cluster(name)),
        }
    }
    let removed: Vec<_> = removed.iter().map(String::as_str).collect();
    if listed {
        return full(kind, &set);
    }
    let update = delta(kind, &set, &removed);
    Update {
        more_follows,
        ..update
    }
}

fn listener_part(text: &str) -> Vec<Resource> {
    if let Some(group) = text.strip_prefix('?') {
        let mut bad = part(group, "bad.example.com", "a").remove(0);
        bad.body = format!("\x0a\x05tls|{group}")
            .into_bytes()
            .into_iter()
            .chain([0xff])
            .collect();
        return vec![bad];
    }
    let (group, rest) = text.split_once(':').unwrap_or((text, text));
    let (label, cluster) = rest.split_once('>').unwrap_or((rest, rest));
    part(group, &format!("{label}.example.com"), cluster)
}

/// A cluster and its assignment.
fn cluster(name: &str) -> Vec<Resource> {
    let mut spec = ClusterSpec::new(name);
    spec.endpoints = vec![EndpointSpec::new("10.0.0.1:443".parse().unwrap())];
    crate::encode::cluster(&spec)
}

/// A listener's part of a group, that routes a server name.
fn part(group: &str, server_name: &str, cluster: &str) -> Vec<Resource> {
    let names = RouteMatch::ServerNames(vec![server_name.to_owned()]);
    let routes = [RouteSpec::new(names, cluster)];
    crate::encode::parts(group, &routes, &GatewayParams::default()).resources
}

/// A response with those of the resources that are of a type.
fn delta(kind: ResourceType, resources: &[Resource], removed: &[&str]) -> Update {
    let of_kind = resources.iter().filter(|one| one.kind == kind);
    let resources = of_kind.map(|one| NamedResource {
        version: "1".into(),
        resource: Some(any(one)),
        name: one.name.to_string(),
    });
    let response = DeltaDiscoveryResponse {
        type_url: kind.type_url().into(),
        resources: resources.collect(),
        removed_resources: removed.iter().map(ToString::to_string).collect(),
        ..DeltaDiscoveryResponse::default()
    };
    decoded(response).unwrap()
}

/// Decodes a response, without other tasks to yield to.
fn decoded(response: impl Into<Response>) -> Option<Update> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime
        .unwrap()
        .block_on(decode_response(response.into(), &[own()]))
}

fn full(kind: ResourceType, resources: &[Resource]) -> Update {
    let of_kind = resources.iter().filter(|one| one.kind == kind);
    let response = DiscoveryResponse {
        type_url: kind.type_url().into(),
        resources: of_kind.map(any).collect(),
        version_info: "v".into(),
        ..DiscoveryResponse::default()
    };
    decoded(response).unwrap()
}

fn any(resource: &Resource) -> Any {
    Any {
        type_url: resource.kind.type_url().into(),
        value: resource.body.clone(),
    }
}

/// A client with one cluster and one route.
fn settled() -> Client {
    let mut client = Client::new();
    client.run("gets C+a A+a L+a; tables 1; routes a1; state current good");
    client
}

#[test]
fn nothing_applies_before_state_is_complete() {
    for script in [
        "# resources that others refer to are awaited
            gets L+a; state # clusters were not heard of
            gets C+a; tables 0; state waits; wants a
            gets A+a; routes a1; state current good",
        "# a partial update is acknowledged and not applied
            gets ~C+a ~A+a ~L+a; tables 0; state
            gets L+b:b>a; tables 1; routes a1 b1; state current good
            gets ~L+c:c>a; gets L+?d!
            routes a1 b1 c1 # the rest is refused, and what was accepted is in effect all the same
            gets ~L+d:d>a; routes a1 b1 c1 # the rest does not come
            without more; routes a1 b1 c1 d1; state current good",
        "# contradictions are refused before
            gets C+a L+a+b:a>b!",
        "# an empty gateway is complete
            gets C L; tables 1; gets C L; tables 1 # nothing new",
        "# a list replaces the state, a part of a named type adds to it
            gets =C+a+b =A+a+b =L+a+b; routes a1 b1; gets =A+a; routes a1 b1
            gets =L+b; routes b1; gets =L; routes",
    ] {
        Client::new().run(script);
    }
}

#[test]
fn settled_state_changes_with_what_is_accepted() {
    for script in [
        "# the cache is to have what is in effect while something is missing
            gets C+b; state waits; saved C/a A/a L/tls|a; routes a1
            gets ~A+b; saved C/a A/a L/tls|a; gets L+b; state current good",
        "# contradictions are refused while something is missing
            gets C+b; state waits; gets L+b:a>b!",
        "# of contradicting updates the first is applied
            gets C+c A+c; gets L+c:a>c!a.example.com L+b:b>a; routes a1 b1
            kept C/a C/c A/a A/c L/tls|a L/tls|b",
        "# a refused table leaves no trace
            refuse; gets L+b-a!not_now; accept; gets C+b; gets A+b; routes a1
            gets L+b-a; routes b1",
        "# an assignment that does not exist is empty
            gets A-a; routes a0; gets A+a; routes a1",
        "# a missing resource times out as empty
            gets C+b L+b; tables 1; state waits; without missing; routes a1 b0
            state current good",
        "# an assignment goes with its cluster
            gets L-a C-a; wants; kept",
        "# a fault names the resource and spares others
            gets L+?b!tls|b L+c:c>a; routes a1 c1",
    ] {
        settled().run(script);
    }
}

#[test]
fn response_with_duplicate_resource_is_refused() {
    assert!(update("C+a+a").fault.unwrap().contains("\"a\""));
    update("C+a-a").fault.unwrap();
}

#[test]
fn missing_assignments_are_filled_in_one_pass() {
    let mut client = Client::new();
    let clusters: Vec<_> = (0..20_000)
        .flat_map(|number| cluster(&number.to_string()))
        .collect();
    client.take(&[delta(Cluster, &clusters, &[]), update("L")]);
    assert_eq!(client.held.missing.len(), 20_000);
    client.run("without missing; state current good");
}

#[test]
fn resource_type_must_match_its_response() {
    let mut wrong = cluster("a");
    wrong[0].kind = Listener;
    let response = DeltaDiscoveryResponse {
        type_url: Cluster.type_url().into(),
        resources: vec![NamedResource {
            version: "1".into(),
            resource: Some(any(&wrong[0])),
            name: "a".into(),
        }],
        ..DeltaDiscoveryResponse::default()
    };
    let update = decoded(response).unwrap();
    assert!(update.fault.unwrap().contains("Listener"));
    let unknown = DeltaDiscoveryResponse {
        type_url: "type.googleapis.com/something.Else".into(),
        ..DeltaDiscoveryResponse::default()
    };
    assert!(decoded(unknown).is_none());
}

#[test]
fn cached_state_applies_after_first_answer() {
    let entries = entries(&settled().held.state);
    let mut client = Client::new();
    client.held.prime(entries).unwrap();
    client.run("state; wants a; gets C L; routes a1; state current good");
}
