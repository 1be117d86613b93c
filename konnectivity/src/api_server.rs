//! A client of an API server: made when first needed, made anew when its kubeconfig changes.
//!
//! ```text
//!     kubeconfig, or the pod's own account ──read at most every 5 s──▶ unchanged ─▶ the same client
//!                                                                  └─▶ changed ───▶ a new client
//! ```
//!
//! A kubeconfig that is broken keeps the last client that could be made. One that wants a program
//! run is refused: it would run here, with this process's rights, and hold up the thread. Asks the
//! API server nothing: that is `token`'s and `lease`'s.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use ring::digest::{Context, SHA256};
use thiserror::Error;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Why there is no client of an API server.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum ApiServerError {
    /// What was read makes no client, by reason of its certificates or its credentials.
    #[error("making a client of the API server")]
    Client(#[source] Box<kube::Error>),
    /// No kubeconfig is named, and this is no pod with an account.
    #[error("using the pod's service account, as no kubeconfig is named")]
    InCluster(#[source] Box<kube::config::InClusterError>),
    /// The kubeconfig cannot be understood.
    #[error("using the kubeconfig {0}")]
    Kubeconfig(PathBuf, #[source] KubeconfigFault),
    /// The kubeconfig, or a file that it names, cannot be read.
    #[error("reading {0}")]
    Read(PathBuf, #[source] io::Error),
}

/// What is wrong with a kubeconfig. Nothing of its contents but names is in the text.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum KubeconfigFault {
    /// It is YAML, but leads to no API server.
    #[error(transparent)]
    Contents(Box<KubeconfigError>),
    /// It is not what a kubeconfig looks like.
    #[error("it is no kubeconfig, or its YAML is wrong")]
    Malformed,
    /// Its user's credentials come from a program.
    #[error("its user {user:?} has `{key}`, which runs a program: give it a token or certificate")]
    Program {
        /// The user's name.
        user: String,
        /// `auth-provider` or `exec`.
        key: &'static str,
    },
}

impl From<KubeconfigError> for KubeconfigFault {
    fn from(error: KubeconfigError) -> Self {
        // Where the text is wrong is shown with what is there, which may be secret.
        if matches!(error, KubeconfigError::Parse(_)) {
            Self::Malformed
        } else {
            Self::Contents(Box::new(error))
        }
    }
}

/// Checks that a kubeconfig's text leads to an API server, without reading the files it names.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn check_kubeconfig(bytes: &[u8]) -> Result<(), KubeconfigFault> {
    let text = std::str::from_utf8(bytes).map_err(|_| KubeconfigFault::Malformed)?;
    check(&Kubeconfig::from_yaml(text)?)
}

/// Checks the kubeconfig at `path`, which may be none, as [`check_kubeconfig`] does.
///
/// # Errors
/// It cannot be read, or what is wrong with it.
pub(crate) fn check_file(path: Option<&PathBuf>) -> Result<(), ApiServerError> {
    let Some(path) = path else {
        return Ok(());
    };
    let refused = |source| ApiServerError::Kubeconfig(path.clone(), source);
    check_kubeconfig(&read(path)?).map_err(refused)
}

/// Checks what is used of a kubeconfig: the cluster and the user of its current context.
fn check(file: &Kubeconfig) -> Result<(), KubeconfigFault> {
    let name = file.current_context.as_ref();
    let name = name.ok_or(KubeconfigError::CurrentContextNotSet)?;
    let context = (file.contexts.iter())
        .find(|context| &context.name == name)
        .and_then(|context| context.context.as_ref())
        .ok_or_else(|| KubeconfigError::LoadContext(name.clone()))?;
    let cluster = (file.clusters.iter())
        .find(|cluster| cluster.name == context.cluster)
        .and_then(|cluster| cluster.cluster.as_ref())
        .ok_or_else(|| KubeconfigError::LoadClusterOfContext(context.cluster.clone()))?;
    let server = cluster.server.as_ref();
    let uri = server.ok_or(KubeconfigError::MissingClusterUrl)?.parse();
    let _: http::Uri = uri.map_err(KubeconfigError::ParseClusterUrl)?;
    let mut users = file.auth_infos.iter();
    let named = users.find(|user| Some(&user.name) == context.user.as_ref());
    let Some((named, user)) = named.and_then(|named| Some((named, named.auth_info.as_ref()?)))
    else {
        return Ok(());
    };
    let key = match (&user.exec, &user.auth_provider) {
        (Some(_), _) => "exec",
        (None, Some(_)) => "auth-provider",
        (None, None) => return Ok(()),
    };
    let user = named.name.clone();
    Err(KubeconfigFault::Program { user, key })
}

/// One API server, and the account it is spoken to with. Clones are the same.
///
/// All clones belong to one runtime: the connections live on the one that asks for a client first.
#[derive(Clone)]
pub(crate) struct ApiServer {
    kubeconfig: Option<Arc<Path>>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// When the files were looked at last.
    looked: Option<Instant>,
    made: Option<Made>,
}

/// A client, numbered, and the digest of what it was made of.
#[derive(Clone)]
struct Made {
    client: Client,
    digest: Vec<u8>,
    generation: u64,
}

impl ApiServer {
    /// Names an API server by its kubeconfig; `None` is the one whose pod this is. Reads nothing.
    pub(crate) fn new(kubeconfig: Option<PathBuf>) -> Self {
        Self {
            kubeconfig: kubeconfig.map(Arc::from),
            state: Arc::default(),
        }
    }

    /// Returns a client, and a number that changes with it.
    ///
    /// Cancel-safe. Connects to nothing yet.
    ///
    /// # Errors
    /// Why none could be made, when none was before.
    pub(crate) async fn client(&self) -> Result<(Client, u64), ApiServerError> {
        let mut state = self.state.lock().await;
        let (now, previous) = (Instant::now(), state.made.clone());
        let fresh = state.looked.is_some_and(|at| now < at + LOOK_PERIOD);
        if let (true, Some(made)) = (fresh, &previous) {
            return Ok((made.client.clone(), made.generation));
        }
        let made = self.make(previous.as_ref()).await;
        state.looked = Some(now);
        let made = match (made, previous) {
            (Ok(made), _) => made,
            (Err(error), Some(previous)) => {
                tracing::warn!(error = %telemetry::chain(&error), "keeping the previous kubeconfig");
                previous
            }
            (Err(error), None) => return Err(error),
        };
        state.made = Some(made.clone());
        Ok((made.client, made.generation))
    }

    /// Returns a client by what the files say now: the `previous` one if they say the same.
    async fn make(&self, previous: Option<&Made>) -> Result<Made, ApiServerError> {
        let (mut config, digest) = self.read().await?;
        if let Some(previous) = previous.filter(|previous| previous.digest == digest) {
            return Ok(previous.clone());
        }
        config.connect_timeout = Some(CONNECT_LIMIT);
        // Who asks says how often; a review that is repeated in secret would outlive its limit.
        config.default_retry = false;
        let client = Client::try_from(config);
        Ok(Made {
            client: client.map_err(|source| ApiServerError::Client(Box::new(source)))?,
            digest,
            generation: previous.map_or(1, |previous| previous.generation + 1),
        })
    }

    async fn read(&self) -> Result<(Config, Vec<u8>), ApiServerError> {
        let Some(path) = &self.kubeconfig else {
            let config = Config::incluster()
                .map_err(|source| ApiServerError::InCluster(Box::new(source)))?;
            // The account's files are read again by the client itself.
            return Ok((config, Vec::new()));
        };
        let mut context = Context::new(&SHA256);
        add(&mut context, path)?;
        let refused = |source| ApiServerError::Kubeconfig(path.to_path_buf(), source);
        let file = Kubeconfig::read_from(path).map_err(|error| refused(error.into()))?;
        check(&file).map_err(refused)?;
        for named in files(&file) {
            add(&mut context, Path::new(named))?;
        }
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(file, &options).await;
        let config = config.map_err(|error| refused(error.into()))?;
        Ok((config, context.finish().as_ref().to_vec()))
    }
}

/// Returns the files that a kubeconfig names. Its tokens' are read again by the client itself.
fn files(config: &Kubeconfig) -> Vec<&str> {
    let clusters = config.clusters.iter();
    let clusters = clusters.filter_map(|named| named.cluster.as_ref());
    let authorities = clusters.map(|cluster| &cluster.certificate_authority);
    let users = config.auth_infos.iter();
    let users = users.filter_map(|named| named.auth_info.as_ref());
    let pairs = users.flat_map(|user| [&user.client_certificate, &user.client_key]);
    let all = authorities.chain(pairs);
    all.filter_map(|path| path.as_deref()).collect()
}

fn add(context: &mut Context, path: &Path) -> Result<(), ApiServerError> {
    let contents = read(path)?;
    context.update(&(contents.len() as u64).to_be_bytes());
    context.update(&contents);
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, ApiServerError> {
    let contents = read_limited(path, MAX_FILE_BYTES);
    contents.map_err(|source| ApiServerError::Read(path.to_owned(), source))
}

/// Reads a file of at most `limit` bytes.
///
/// # Errors
/// When it cannot be read, or is larger.
pub(crate) fn read_limited(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    File::open(path)?
        .take(limit.saturating_add(1))
        .read_to_end(&mut contents)?;
    if contents.len() as u64 > limit {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("more than {limit} bytes"),
        ));
    }
    Ok(contents)
}

/// Files take effect 10 s after they change: they are looked at twice as often.
pub(crate) const LOOK_PERIOD: Duration = Duration::from_secs(5);

const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The largest kubeconfig, or file that one names.
pub(crate) const MAX_FILE_BYTES: u64 = 1024 * 1024;

#[cfg(test)]
mod tests {
    use testkit::tempdir::TempDir;

    use super::*;

    fn kubeconfig(server: &str) -> String {
        format!(
            "{{apiVersion: v1, kind: Config, current-context: a,
               clusters: [{{name: a, cluster: {{server: \"{server}\"}}}}],
               users: [{{name: a, user: {{token: t}}}}],
               contexts: [{{name: a, context: {{cluster: a, user: a}}}}]}}"
        )
    }

    #[tokio::test(start_paused = true)]
    async fn broken_kubeconfig_keeps_last_client() {
        let dir = TempDir::new("api-server").unwrap();
        let api = ApiServer::new(Some(dir.join("kubeconfig")));
        let missing = api.client().await.map(drop).unwrap_err();
        assert!(matches!(missing, ApiServerError::Read { .. }), "{missing}");
        dir.write("kubeconfig", kubeconfig("http://127.0.0.1:1"))
            .unwrap();
        let (_, first) = api.client().await.unwrap();

        dir.replace("kubeconfig", kubeconfig("http://127.0.0.1:2"))
            .unwrap();
        assert_eq!(api.client().await.unwrap().1, first, "looked at just now");
        tokio::time::advance(LOOK_PERIOD).await;
        let (_, second) = api.client().await.unwrap();
        assert_ne!(second, first);

        dir.replace("kubeconfig", "no: [kubeconfig").unwrap();
        tokio::time::advance(LOOK_PERIOD).await;
        assert_eq!(api.client().await.unwrap().1, second);
    }

    fn with_user(user: &str) -> String {
        kubeconfig("http://127.0.0.1:1").replace("{token: t}", user)
    }

    #[tokio::test]
    async fn a_kubeconfig_that_runs_a_program_is_refused() {
        let dir = TempDir::new("api-server-program").unwrap();
        let path = dir.join("kubeconfig");
        let ran = dir.join("ran");
        let shown = ran.display();
        let exec = format!(
            "exec: {{apiVersion: client.authentication.k8s.io/v1, command: touch, \
             args: [\"{shown}\"]}}"
        );
        let provider = format!(
            "auth-provider: {{name: gcp, config: {{cmd-path: touch, cmd-args: \"{shown}\"}}}}"
        );
        for (key, user) in [("exec", exec), ("auth-provider", provider)] {
            let user = format!("{{{user}}}");
            dir.replace("kubeconfig", with_user(&user)).unwrap();
            let api = ApiServer::new(Some(path.clone()));
            let error = api.client().await.map(drop).unwrap_err();
            let text = telemetry::chain(&error).to_string();
            assert!(text.contains(&format!("`{key}`")), "{text}");
            assert!(!ran.exists(), "{key} was run");
            let fault = check_kubeconfig(with_user(&user).as_bytes()).unwrap_err();
            assert!(matches!(fault, KubeconfigFault::Program { .. }), "{fault}");
        }
    }

    #[test]
    fn invalid_kubeconfig_error_has_no_secrets() {
        let good = kubeconfig("http://127.0.0.1:1");
        check_kubeconfig(good.as_bytes()).unwrap();
        check_kubeconfig(with_user("null").as_bytes()).unwrap();
        let mut broken = vec![
            "{}".to_owned(),
            String::new(),
            "not: [yaml".to_owned(),
            with_user("[secret-word]"),
            with_user("{token: {secret-word: 1}}"),
        ];
        for (from, to) in [
            ("current-context: a", "current-context: b"),
            ("context: {cluster: a,", "context: {cluster: b,"),
            ("http://127.0.0.1:1", ":://"),
        ] {
            assert!(good.contains(from));
            broken.push(good.replace(from, to));
        }
        for text in broken {
            let fault = check_kubeconfig(text.as_bytes()).unwrap_err();
            let told = telemetry::chain(&fault).to_string();
            assert!(!told.contains("secret-word"), "{told}");
        }
        assert!(check_kubeconfig(b"\xff").is_err());
    }

    #[test]
    fn a_file_above_the_limit_is_refused() {
        let dir = TempDir::new("api-server-large").unwrap();
        let path = dir.write("large", [0; 9]).unwrap();
        assert_eq!(read_limited(&path, 9).unwrap().len(), 9);
        let error = read_limited(&path, 8).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
