//! The command line: `quipu serve` and the operator's commands.
//!
//! Floor 5, the composition root. Everything that is printed for people goes through [`text`], so that nothing in a
//! log can steer a terminal.
#![allow(clippy::print_stdout, reason = "commands print their results")]

/// Prints a line. That nobody reads any more is an error here, which ends a command, and success for the program.
macro_rules! say {
    ($($part:tt)*) => {{
        use std::io::Write as _;
        writeln!(std::io::stdout(), $($part)*)
    }};
}

mod certs;
mod command;
pub mod config;
mod export;
mod fork;
mod gauge;
mod guard;
mod import;
mod keep;
mod kinds;
mod lines;
mod opening;
mod owner;
mod read;
mod rules;
pub mod security;
mod serve;
mod space;
mod tail;
mod target;
mod text;
mod view;
mod watch;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use self::target::Target;

/// Exit codes, as in the README.
const REFUSED: u8 = 1;
const USAGE: u8 = 2;

/// A durable log server for the sessions of AI-agent hosts.
///
/// `quipu serve` runs the server; the other commands talk to one. Exit codes: 0 done, 1 refused or failed, 2 wrong
/// arguments or configuration, 3 the store cannot be opened.
#[derive(Parser)]
#[command(name = "quipu", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the server.
    ///
    /// Every setting is a flag, a QUIPU_* variable (--data-dir is QUIPU_DATA_DIR) and a key of the TOML file
    /// (data_dir); flags win over variables, those over the file.
    Serve(ServeArgs),
    /// Create a session.
    ///
    /// Repeating the same command is harmless; another header for the same id is refused.
    Create(command::CreateArgs),
    /// Append events from a file or from standard input.
    ///
    /// One JSON object a line: {"type":"note","data":{...}}; "time" (ms), "surfaceOp", "sourceEventSeqs" and
    /// "ignorable" are optional. With --first-seq the command can be repeated after a failure: what is stored already
    /// is confirmed, not stored twice.
    Append(command::AppendArgs),
    /// Print the events of a session.
    ///
    /// With --json one object a line, in the form that append and import read, data byte for byte.
    Read(read::ReadArgs),
    /// Print the end of a session, and with --follow what comes.
    ///
    /// Each event once, in order, once it is durable. For example: quipu tail demo -f --type 'assistant/*'
    Tail(tail::TailArgs),
    /// Print the newest page of a session and what comes after it.
    ///
    /// Goes on by itself after a cut or a restart of the server. The page is counted in messages of users and the model.
    Watch(tail::WatchArgs),
    /// Print what was committed on the node, in commit order, and with --follow what comes.
    ///
    /// One line a change: position, time, kind, session, seqs. Positions have no holes: go on with --from.
    Changes(tail::ChangesArgs),
    /// List sessions, the one that changed last first.
    Ls(command::ListArgs),
    /// Show header and head of a session.
    Stat(command::SessionArgs),
    /// Delete a session.
    ///
    /// The name is free at once. Events that forks share stay for them; quipu purge removes what nobody uses.
    Rm(command::RemoveArgs),
    /// Wait until everything accepted is durable.
    Flush(command::SessionArgs),
    /// Make a session that begins with the events of another.
    ///
    /// It shares them by reference: a fork of any log is one small record. With a child id the command can be repeated:
    /// the same request is answered with the same child.
    Fork(fork::ForkArgs),
    /// Copy what a fork shares, so that it stands alone.
    ///
    /// The log does not change. A copying that stops is repeated and goes on where it stopped.
    Detach(fork::DetachArgs),
    /// Remove the events of deleted sessions that no session uses, for good.
    ///
    /// One receipt for each deleted session: events, bytes, and the chain before what was removed.
    Purge(space::PurgeArgs),
    /// Tell which sessions are older than the rules allow, and delete them with --apply.
    ///
    /// Age counts from the last change. A session with an open turn is never taken. The rules are those of the
    /// server's setting retention; --keep takes another age.
    Retention(space::RetentionArgs),
    /// Show what sessions take, and what a purge would free.
    Du(space::DuArgs),
    /// Import session files of the reference harness (JSONL, plain or zstd, packed rows or not).
    ///
    /// Each file is checked as a whole before anything is stored. Repeating an import is harmless: what is there
    /// already is compared by its chain and not sent again. A recording without seqs and times gets them.
    Import(import::ImportArgs),
    /// Export sessions as files of the reference harness (JSONL), the form that import reads.
    ///
    /// The chain of what is written was compared with the server's. The same log gives the same file, so that export,
    /// import and export again end where they began. What the format has no place for is said: labels, and line
    /// breaks between the tokens of an event's data.
    Export(export::ExportArgs),
    /// Show the messages that a model would see.
    Messages(view::MessagesArgs),
    /// Show the request that was made of a model: header and messages before a dispatch.
    ///
    /// With neither --dispatch nor --before the request that the whole log adds up to.
    Request(view::RequestArgs),
    /// List the model calls, failed ones included, or show one with the blocks that its chunks add up to.
    Attempts(view::AttemptsArgs),
    /// Show a page of the log, the newest unless --before is given.
    History(view::HistoryArgs),
    /// Show what an event was made from, what was made from it, and what replaced it.
    Trace(view::TraceArgs),
    /// Show the family of a session as a tree.
    Lineage(view::LineageArgs),
    /// Show turns, steps, times and tokens of a session.
    Stats(view::StatsArgs),
    /// Show a log's end and what would close its open turn; changes nothing.
    ///
    /// While an owner's lease runs the log is shown as it stands, with its open turn. With --events all of it, the
    /// closers last.
    Inspect(owner::FaceArgs),
    /// Close an open turn durably, and show the log's end.
    ///
    /// Refused with TURN_OPEN while somebody owns the session: its owner may go on with the turn.
    Load(owner::FaceArgs),
    /// Close an open turn of exactly the log that is there now, or show with --dry-run what would be appended.
    ///
    /// Calls without a result get one that says that the outcome is unknown; nothing is invented, and every node
    /// appends the same bytes. Refused while somebody else owns the session.
    Repair(owner::RepairArgs),
    /// Show who owns a session, and how it changed hands.
    Owner(owner::OwnerArgs),
    /// Take a session from its owner, whose writes are refused from then on.
    ///
    /// The reason is kept in the session's record. The session is reserved for --holder until its lease ends, or free
    /// for the next host at once with --release.
    TakeOver(owner::TakeOverArgs),
    /// Show what a node is doing, on one screen.
    ///
    /// Asks the node's port of probes and metrics (quipu serve --metrics-listen 127.0.0.1:9777). Counts are since its start.
    /// The exit code is 1 when the node is not ready.
    Status(watch::StatusArgs),
    /// Watch a node: rates, latencies, room and refusals, every second.
    ///
    /// Asks the same port as status. q, Esc or Ctrl-C end it.
    Top(watch::TopArgs),
    /// Make a test authority and certificates that it signed.
    ///
    /// quipu certs DIR makes DIR/ca.pem and DIR/server.pem with their keys; --client NAME makes DIR/NAME.pem beside them.
    /// An authority that is there already is used again. For tests: its key lies in a file.
    Certs(certs::CertsArgs),
    /// Print a completion script: quipu completions bash > /etc/bash_completion.d/quipu
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Flags of `serve` that are no settings.
#[derive(Args)]
struct ServeArgs {
    /// TOML file with settings.
    #[arg(long, value_name = "FILE", env = "QUIPU_CONFIG")]
    config: Option<PathBuf>,
    /// Check the configuration, say all that is wrong, and exit.
    #[arg(long)]
    check_config: bool,
    /// Print the configuration as a TOML file, and exit.
    #[arg(long)]
    print_config: bool,
}

/// The whole program, from arguments to exit code.
pub fn main() -> ExitCode {
    let definition = serve::with_settings(Cli::command());
    let matches = match definition.try_get_matches() {
        Ok(matches) => matches,
        Err(error) => error.exit(),
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let done = match cli.command {
        Command::Serve(args) => {
            let flags = matches.subcommand_matches("serve");
            return flags.map_or_else(|| ExitCode::from(USAGE), |flags| serve::serve(&args, flags));
        }
        Command::Completions { shell } => {
            let mut definition = serve::with_settings(Cli::command());
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut definition, "quipu", &mut script);
            std::io::stdout().write_all(&script).map_err(Into::into)
        }
        Command::Certs(args) => certs::certs(&args),
        Command::Create(args) => run(command::create(args)),
        Command::Append(args) => run(command::append(args)),
        Command::Read(args) => run(read::read(args)),
        Command::Tail(args) => run(tail::tail(args)),
        Command::Watch(args) => run(tail::watch(args)),
        Command::Changes(args) => run(tail::changes(args)),
        Command::Ls(args) => run(command::list(args)),
        Command::Stat(args) => run(command::stat(args)),
        Command::Rm(args) => run(command::remove(args)),
        Command::Flush(args) => run(command::flush(args)),
        Command::Fork(args) => run(fork::fork(args)),
        Command::Detach(args) => run(fork::detach(args)),
        Command::Purge(args) => run(space::purge(args)),
        Command::Retention(args) => run(space::retention(args)),
        Command::Du(args) => run(space::du(args)),
        Command::Import(args) => run(import::import(args)),
        Command::Inspect(args) => run(owner::inspect(args)),
        Command::Load(args) => run(owner::load(args)),
        Command::Repair(args) => run(owner::repair(args)),
        Command::Owner(args) => run(owner::owner(args)),
        Command::TakeOver(args) => run(owner::take_over(args)),
        Command::Export(args) => run(export::export(args)),
        Command::Messages(args) => run(view::messages(args)),
        Command::Request(args) => run(view::request(args)),
        Command::Attempts(args) => run(view::attempts(args)),
        Command::History(args) => run(view::history(args)),
        Command::Trace(args) => run(view::trace(args)),
        Command::Lineage(args) => run(view::lineage(args)),
        Command::Stats(args) => run(view::stats(args)),
        Command::Status(args) => watch::status(&args),
        Command::Top(args) => watch::top(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quipu: {}", text::shown(&format!("{error:#}")));
            ExitCode::from(REFUSED)
        }
    }
}

/// The reader of our output had enough, as `head` has.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

fn run(command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}
