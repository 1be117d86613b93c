//! The thread that starts every child, and lives as long as the process.

use std::io;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

pub(super) fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Sender<Job>> = OnceLock::new();
    let (reply, answer) = channel();
    let gone = |_| io::Error::other("the thread that starts children is gone");
    let sent = SPAWNER.get_or_init(start).send(Job { command, reply });
    sent.map_err(|_| io::Error::other("the thread that starts children has not started"))?;
    answer.recv().map_err(gone)?
}

struct Job {
    command: Command,
    reply: Sender<io::Result<Child>>,
}

fn start() -> Sender<Job> {
    let (jobs, queue) = channel::<Job>();
    let thread = std::thread::Builder::new().name("spawner".to_owned());
    // A thread that cannot be started drops `queue`, and the first send says so.
    let _ = thread.spawn(move || {
        while let Ok(mut job) = queue.recv() {
            let _ = job.reply.send(job.command.spawn());
        }
    });
    jobs
}
