//! Whatever happens, a client that answers has in the end what there is.

use proptest::prelude::*;

use super::*;
use crate::server::stream_task::Variant as _;

/// Something that happens.
#[derive(Clone, Debug)]
enum Step {
    Set(ResourceType, u8, u8),
    Remove(ResourceType, u8),
    /// The next response reaches the client.
    Deliver,
    /// The oldest answer of the client reaches the server.
    Answer,
    Subscribe(u8),
    Unsubscribe(u8),
    Reconnect,
    Wait,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = || prop::sample::select(vec![Cluster, ClusterLoadAssignment, Listener]);
    let step = prop_oneof![
        6 => (kind(), 0..6_u8, 0..4_u8).prop_map(|(kind, name, body)| Step::Set(kind, name, body)),
        3 => (kind(), 0..6_u8).prop_map(|(kind, name)| Step::Remove(kind, name)),
        6 => Just(Step::Deliver),
        6 => Just(Step::Answer),
        1 => (0..6_u8).prop_map(Step::Subscribe),
        1 => (0..6_u8).prop_map(Step::Unsubscribe),
        1 => Just(Step::Reconnect),
        1 => Just(Step::Wait),
    ];
    prop::collection::vec(step, 0..120)
}

/// A client that refuses resources whose body is 3.
#[derive(Default)]
struct Model {
    has: BTreeMap<(ResourceType, String), String>,
    wants: BTreeSet<String>,
    answers: VecDeque<Answer>,
}

struct Answer {
    kind: ResourceType,
    nonce: String,
    version: String,
    taken: bool,
}

const BAD: &str = "3";

trait Variant {
    fn begin(bench: &mut Bench, model: &Model);
    fn names(bench: &mut Bench, model: &Model, subscribe: &[&str], unsubscribe: &[&str]);
    fn deliver(bench: &mut Bench, model: &mut Model) -> bool;
    fn answer(bench: &mut Bench, model: &Model, answer: &Answer);
}

struct Delta;

impl Variant for Delta {
    fn begin(bench: &mut Bench, model: &Model) {
        for kind in [Cluster, ClusterLoadAssignment, Listener] {
            let had = model.has.iter().filter(|((of, _), _)| *of == kind);
            let versions = had
                .map(|((_, name), body)| (name.clone(), Version::of(body.as_bytes()).to_string()));
            let names = model.wants.iter().filter(|_| kind == ClusterLoadAssignment);
            bench.ask(DeltaDiscoveryRequest {
                resource_names_subscribe: names.cloned().collect(),
                initial_resource_versions: versions.collect(),
                ..delta(kind)
            });
        }
    }

    fn names(bench: &mut Bench, _: &Model, subscribe: &[&str], unsubscribe: &[&str]) {
        bench.ask(DeltaDiscoveryRequest {
            resource_names_subscribe: strings(subscribe),
            resource_names_unsubscribe: strings(unsubscribe),
            ..delta(ClusterLoadAssignment)
        });
    }

    fn deliver(bench: &mut Bench, model: &mut Model) -> bool {
        let next =
            crate::server::delta::Delta::next_response(&mut bench.stream, &bench.store, bench.now);
        let Some((kind, response)) = next else {
            return false;
        };
        let body = |one: &crate::proto::discovery::NamedResource| {
            String::from_utf8(one.resource.as_ref().unwrap().value.to_vec()).unwrap()
        };
        let taken = response.resources.iter().all(|one| body(one) != BAD);
        if taken {
            for one in &response.resources {
                model.has.insert((kind, one.name.clone()), body(one));
            }
            for name in response.removed_resources {
                model.has.remove(&(kind, name));
            }
        }
        model.answers.push_back(Answer {
            kind,
            nonce: response.nonce,
            version: String::new(),
            taken,
        });
        true
    }

    fn answer(bench: &mut Bench, _: &Model, answer: &Answer) {
        bench.ask(DeltaDiscoveryRequest {
            response_nonce: answer.nonce.clone(),
            error_detail: (!answer.taken).then(refusal),
            ..delta(answer.kind)
        });
    }
}

struct Full;

impl Full {
    fn wants(model: &Model, kind: ResourceType) -> Vec<String> {
        let named = kind == ClusterLoadAssignment;
        model.wants.iter().filter(|_| named).cloned().collect()
    }
}

impl Variant for Full {
    fn begin(bench: &mut Bench, model: &Model) {
        for kind in [Cluster, ClusterLoadAssignment, Listener] {
            bench.ask_full(DiscoveryRequest {
                resource_names: Self::wants(model, kind),
                ..full(kind)
            });
        }
    }

    fn names(bench: &mut Bench, model: &Model, _: &[&str], _: &[&str]) {
        let latest = bench.stream.progress(ClusterLoadAssignment).clone();
        bench.ask_full(DiscoveryRequest {
            version_info: latest.version,
            response_nonce: latest.nonce,
            resource_names: Self::wants(model, ClusterLoadAssignment),
            ..full(ClusterLoadAssignment)
        });
    }

    /// Bodies begin with the name here, so that they differ.
    fn deliver(bench: &mut Bench, model: &mut Model) -> bool {
        let next =
            crate::server::full::Full::next_response(&mut bench.stream, &bench.store, bench.now);
        let Some((kind, response)) = next else {
            return false;
        };
        let bodies = response.resources.iter();
        let bodies: Vec<_> = bodies
            .map(|any| String::from_utf8(any.value.to_vec()).unwrap())
            .collect();
        let taken = bodies.iter().all(|body| !body.ends_with(BAD));
        if taken {
            if kind != ClusterLoadAssignment {
                model.has.retain(|(of, _), _| *of != kind);
            }
            for body in bodies {
                let name = body.split('=').next().unwrap().to_owned();
                model.has.insert((kind, name), body);
            }
        }
        model.answers.push_back(Answer {
            kind,
            nonce: response.nonce,
            version: response.version_info,
            taken,
        });
        true
    }

    fn answer(bench: &mut Bench, model: &Model, answer: &Answer) {
        bench.ask_full(DiscoveryRequest {
            version_info: answer.version.clone(),
            resource_names: Self::wants(model, answer.kind),
            response_nonce: answer.nonce.clone(),
            error_detail: (!answer.taken).then(refusal),
            ..full(answer.kind)
        });
    }
}

fn run<V: Variant>(steps: &[Step], named_bodies: bool) -> (Bench, Model) {
    let mut bench = Bench::new(Audience::Parts);
    bench.stream.limits.response_bytes = 300;
    let mut model = Model::default();
    V::begin(&mut bench, &model);
    for step in steps {
        match step {
            Step::Set(kind, name, body) => {
                let body = if named_bodies {
                    format!("{name}={body}")
                } else {
                    body.to_string()
                };
                bench.set(*kind, &name.to_string(), &body);
            }
            Step::Remove(kind, name) => {
                let name = name.to_string().into();
                bench.update(vec![], vec![(*kind, Audience::All, name)]);
            }
            Step::Deliver => {
                V::deliver(&mut bench, &mut model);
            }
            Step::Answer => {
                if let Some(answer) = model.answers.pop_front() {
                    V::answer(&mut bench, &model, &answer);
                }
            }
            Step::Subscribe(name) => {
                let name = name.to_string();
                model.wants.insert(name.clone());
                V::names(&mut bench, &model, &[&name], &[]);
            }
            Step::Unsubscribe(name) => {
                let name = name.to_string();
                if model.wants.remove(&name) {
                    model.has.remove(&(ClusterLoadAssignment, name.clone()));
                    V::names(&mut bench, &model, &[], &[&name]);
                }
            }
            Step::Reconnect => {
                let limit = bench.stream.limits.response_bytes;
                bench.reconnect();
                bench.stream.limits.response_bytes = limit;
                model.answers.clear();
                V::begin(&mut bench, &model);
            }
            Step::Wait => bench.now += WAIT,
        }
    }
    finish::<V>(&mut bench, &mut model);
    (bench, model)
}

/// Everything is delivered and answered, with waits, until there is nothing more.
fn finish<V: Variant>(bench: &mut Bench, model: &mut Model) {
    let mut quiet = 0;
    for _ in 0..1000 {
        if let Some(answer) = model.answers.pop_front() {
            V::answer(bench, model, &answer);
        } else if V::deliver(bench, model) {
            quiet = 0;
        } else if quiet < 3 {
            quiet += 1;
            bench.now += WAIT;
        } else {
            return;
        }
    }
    panic!("it does not come to an end");
}

fn visible(bench: &Bench, model: &Model) -> BTreeMap<(ResourceType, String), String> {
    let mut all = BTreeMap::new();
    for kind in [Cluster, ClusterLoadAssignment, Listener] {
        for (name, content) in bench.store.all_visible(kind, Audience::Parts) {
            if kind != ClusterLoadAssignment || model.wants.contains(&**name) {
                let body = String::from_utf8(content.body.to_vec()).unwrap();
                all.insert((kind, name.to_string()), body);
            }
        }
    }
    all
}

proptest! {
    #[test]
    fn delta_client_converges_to_the_store(steps in steps()) {
        let (bench, model) = run::<Delta>(&steps, false);
        let mut wanted = visible(&bench, &model);
        let mut has = model.has;
        // Under a name of which the latest is refused the client keeps what it had.
        let refused: Vec<_> = wanted.iter().filter(|(_, body)| *body == BAD).collect();
        let refused: Vec<_> = refused.into_iter().map(|(key, _)| key.clone()).collect();
        for key in refused {
            wanted.remove(&key);
            has.remove(&key);
        }
        prop_assert_eq!(has, wanted);
        prop_assert_eq!(bench.stream.timeout(), None);
    }

    #[test]
    fn full_client_converges_to_the_store(steps in steps()) {
        // Lists are refused whole: without bad ones, to compare them.
        let good: Vec<_> = steps
            .into_iter()
            .map(|step| {
                if let Step::Set(kind, name, 3) = step {
                    return Step::Set(kind, name, 2);
                }
                step
            })
            .collect();
        let (bench, model) = run::<Full>(&good, true);
        let wanted = visible(&bench, &model);
        // What does not exist any more is not said of assignments: their clusters are gone.
        let has = model.has.iter().filter(|(key, _)| {
            key.0 != ClusterLoadAssignment || wanted.contains_key(*key)
        });
        let has: BTreeMap<_, _> = has.map(|(key, body)| (key.clone(), body.clone())).collect();
        prop_assert_eq!(has, wanted);
        prop_assert_eq!(bench.stream.timeout(), None);
    }
}
