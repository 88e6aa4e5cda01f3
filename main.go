// Widgetd is the public widget and licensing interface of a family of
// delivery-software products: one binary, one SQLite file. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
	_ "time/tzdata" // a small server may not have the time zones
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	var usage usageError
	switch {
	case errors.As(err, &usage):
		fmt.Fprintln(os.Stderr, "widgetd:", err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "widgetd:", err)
		os.Exit(1)
	}
}

// commands is every command.
var commands []command

func init() { // a variable's initialiser could not refer to help, which reads it
	commands = slices.Concat([]command{
		{"init", "", "make the database, the key file and the main account; existing ones are never touched", []string{"base-url", "name", "origin"}, 0, initCommand},
		{"serve", "", "run the service", []string{"addr", "trusted-proxies", "debug-addr", "anonymous-rate", "failed-lookup-rate", "legacy-sunset", "litestream", "log"}, 0, serveCommand},
		{"demo", "", "run a service with data, a page to look at, and curl lines to paste", []string{"addr", "dir", "log"}, 0, demoCommand},
	}, adminCommands, licenseCommands, []command{
		{"version", "", "tell which build this is", nil, 0, func(e *env) error { return e.print(map[string]string{"version": buildName()}, buildName()) }},
		{"help", "[COMMAND]", "show this, or what a command takes", nil, 0, func(e *env) error { return help(e.stdout) }},
	})
}

// run is the program: it does what args say, with the environment of getenv, and
// returns when that is done or ctx ends. A usageError means that args are wrong.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	syscall.Umask(0o077) // whatever is made is for this user only
	if len(args) == 0 {
		help(stderr)
		return usageError("a command is missing")
	}
	if isHelp(args[0]) {
		return help(stdout)
	}
	if args[0] == "help" && len(args) > 1 && !strings.HasPrefix(args[1], "-") {
		args = append(args[1:len(args):len(args)], "-h")
	}
	cmd, rest := findCommand(args)
	if cmd == nil {
		return unknownCommand(args, stdout, stderr)
	}
	e := &env{ctx: ctx, getenv: getenv, stdout: stdout, stderr: stderr, command: cmd, now: time.Now}
	if err := e.parse(rest); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return commandHelp(stdout, cmd)
		}
		return err
	}
	return cmd.run(e)
}
