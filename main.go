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
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
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

// commands is every command, noun by noun.
func commands() []command {
	return slices.Concat(serveCommands, demoCommands, accountCommands, keyCommands, leadCommands, licenseCommands, deviceCommands,
		widgetCommands, eventCommands, legacyCommands, storeCommands, helpCommands)
}

// run is the program: it does what args say, with the environment of getenv, and
// returns when that is done or ctx ends. A usageError means that args are wrong.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	syscall.Umask(0o077) // whatever is made is for this user only
	all := commands()
	if len(args) == 0 {
		help(stderr, all)
		return usageError("a command is missing")
	}
	if isHelp(args[0]) {
		return help(stdout, all)
	}
	if args[0] == "help" && len(args) > 1 && !strings.HasPrefix(args[1], "-") {
		args = append(args[1:len(args):len(args)], "-h")
	}
	cmd, rest := findCommand(all, args)
	if cmd == nil {
		return unknownCommand(all, args, stdout, stderr)
	}
	e := &env{ctx: ctx, getenv: getenv, stdout: stdout, stderr: stderr, commands: all, command: cmd, now: time.Now}
	if err := e.parse(rest); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return commandHelp(stdout, all, cmd)
		}
		return err
	}
	return cmd.run(e)
}
