// Widgetd is the public API for the widgets and licences of a family of delivery-software
// products: one binary and one SQLite file. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
	_ "time/tzdata" // a minimal server may have no time zone files
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	tuneCollector(os.Getenv)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "widgetd:", err)
	if errors.As(err, new(usageError)) {
		os.Exit(2)
	}
	os.Exit(1)
}

// tuneCollector lets the garbage collector run less often than by default, and sets a soft
// limit on memory. The environment variables GOGC and GOMEMLIMIT take precedence. It makes
// verify a twentieth faster and costs some 10 MiB.
func tuneCollector(getenv func(string) string) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(64 << 20) // reached by a thousand requests at once
	}
}

// commandsOf returns the program's own commands and those of the given nouns, in the order of the help.
func commandsOf(of []noun) []command {
	return slices.Concat(serveCommands, statusCommands, demoCommands,
		collectNouns(of, func(n *noun) []command { return n.commands }), helpCommands)
}

// run is the whole program. args are the words after the program's name; getenv looks up
// environment variables. It returns when the command is done, or when ctx ends and what
// the command runs has stopped. A usageError means that args are wrong.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	syscall.Umask(0o077) // files that are created can be read by this user only
	e := &env{ctx: ctx, getenv: getenv, stdin: os.Stdin, stdout: stdout, stderr: stderr, nouns: nouns(),
		now: time.Now, installed: installedDir, uid: os.Geteuid(), caller: callingUser(getenv)}
	e.commands = commandsOf(e.nouns)
	return e.dispatch(args)
}

// dispatch runs the command that args name. It sets the fields of e that depend on them.
func (e *env) dispatch(args []string) error {
	if len(args) == 0 {
		help(e.stderr, e.commands)
		return usageError("a command is missing")
	}
	if isHelp(args[0]) {
		return help(e.stdout, e.commands)
	}
	if args[0] == "help" && len(args) > 1 && !strings.HasPrefix(args[1], "-") {
		args = append(args[1:len(args):len(args)], "-h")
	}
	cmd, rest := findCommand(e.commands, args)
	if cmd == nil {
		return unknownCommand(e.commands, args, e.stdout, e.stderr)
	}
	e.command = cmd
	switch err := e.parse(rest); {
	case errors.Is(err, flag.ErrHelp):
		return commandHelp(e.stdout, e.commands, cmd)
	case err != nil:
		return err
	}
	if err := e.resolveIDs(); err != nil {
		return err
	}
	return cmd.run(e)
}
