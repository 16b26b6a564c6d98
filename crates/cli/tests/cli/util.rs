//! A folder for a test, and the program run in it.

use serde_json::Value;
use std::ffi::OsStr;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A folder that is the user's home, cache and working folder, and is gone after the test.
pub struct Dir(TempDir);

impl Dir {
    pub fn new() -> Dir {
        Dir(TempDir::new().unwrap())
    }

    /// Writes a file.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.path().join(name)).unwrap()
    }

    /// The program in this folder, cut off from the user's environment and from the network.
    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_smelt"));
        command.current_dir(self.0.path()).env("SMELT_OFFLINE", "1").env("SMELT_CACHE", self.0.path());
        for name in ["HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"] {
            command.env(name, self.0.path());
        }
        for name in ["COLUMNS", "SMELT_GRAPH_TRACE", "SMELT_CPU", "SMELT_CPU_ACTIVATIONS", "SMELT_CPU_REPACK"]
        {
            command.env_remove(name);
        }
        command
    }

    /// Runs the program with nothing on stdin.
    pub fn smelt<S: AsRef<OsStr>>(&self, args: &[S]) -> Outcome {
        self.smelt_with(args, "")
    }

    /// Runs the program with a text on stdin.
    pub fn smelt_with<S: AsRef<OsStr>>(&self, args: &[S], stdin: &str) -> Outcome {
        let mut command = self.command();
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A program that fails before it reads closes the pipe: no fault of the test.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        Outcome::of(child.wait_with_output().unwrap())
    }
}

/// What a run of the program came to.
#[derive(Debug)]
pub struct Outcome {
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    pub fn of(output: std::process::Output) -> Outcome {
        Outcome {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("stdout is UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("stderr is UTF-8"),
        }
    }

    /// stdout of a run that went well.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self.stdout
    }

    /// stdout of a run that went well and printed JSON.
    #[track_caller]
    pub fn json(self) -> Value {
        let text = self.ok();
        assert_eq!(text.matches('\n').count(), 1, "one line: {text}");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// stderr of a run that failed with this code: nothing on stdout, one line that says why, no panic.
    #[track_caller]
    pub fn fails(self, code: i32) -> String {
        assert_eq!((self.code, self.stdout.as_str()), (Some(code), ""), "{self:#?}");
        let errors = self.stderr.lines().filter(|line| line.starts_with("error: ")).count();
        assert!(errors == 1 && !self.stderr.contains("panicked"), "{self:#?}");
        self.stderr
    }
}
