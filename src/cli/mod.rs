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

mod command;
pub mod config;
mod export;
mod import;
mod lines;
mod serve;
mod text;
mod view;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

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
    Read(command::ReadArgs),
    /// List sessions, the one that changed last first.
    Ls(command::ListArgs),
    /// Show header and head of a session.
    Stat(command::SessionArgs),
    /// Delete a session.
    Rm(command::RemoveArgs),
    /// Wait until everything accepted is durable.
    Flush(command::SessionArgs),
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

/// Where a client command connects, and how it prints.
#[derive(Args)]
struct Target {
    /// The server.
    #[arg(long, value_name = "URL", env = "QUIPU_ADDRESS", default_value = "http://127.0.0.1:7777", global = true)]
    address: String,
    /// The tenant.
    #[arg(long, short, value_name = "NAME", env = "QUIPU_NAMESPACE", default_value = "default", global = true)]
    namespace: String,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
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
        Command::Create(args) => run(command::create(args)),
        Command::Append(args) => run(command::append(args)),
        Command::Read(args) => run(command::read(args)),
        Command::Ls(args) => run(command::list(args)),
        Command::Stat(args) => run(command::stat(args)),
        Command::Rm(args) => run(command::remove(args)),
        Command::Flush(args) => run(command::flush(args)),
        Command::Import(args) => run(import::import(args)),
        Command::Export(args) => run(export::export(args)),
        Command::Messages(args) => run(view::messages(args)),
        Command::Request(args) => run(view::request(args)),
        Command::Attempts(args) => run(view::attempts(args)),
        Command::History(args) => run(view::history(args)),
        Command::Trace(args) => run(view::trace(args)),
        Command::Lineage(args) => run(view::lineage(args)),
        Command::Stats(args) => run(view::stats(args)),
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
