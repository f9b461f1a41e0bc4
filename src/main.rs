//! `weir`: decides who may talk to a host and drops the rest where it costs
//! least. This file is the table of contents; each verb has a file in `cli/`.

mod cli;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let program = std::env::args_os().next();
    if cli::fail2ban_client::is_called(program.as_deref()) {
        return cli::fail2ban_client::main();
    }
    if cli::fail2ban_regex::is_called(program.as_deref()) {
        return cli::fail2ban_regex::main();
    }
    match cli::run(cli::Weir::parse()) {
        Ok(cli::ExitAnswer::Done) => ExitCode::SUCCESS,
        Ok(cli::ExitAnswer::No) => ExitCode::from(1),
        Ok(cli::ExitAnswer::Mistaken) => ExitCode::from(2),
        Err(error) => {
            // A reader that went away (`weir bans | head`) is no failure.
            if cli::is_broken_pipe(&error) {
                return ExitCode::SUCCESS;
            }
            cli::complain(&error);
            ExitCode::from(2)
        }
    }
}
