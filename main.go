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
	"slices"
	"strings"
	"syscall"
	"time"
	_ "time/tzdata" // a minimal server may have no time zone files
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

// commands returns the commands of every noun, in the order of the help.
func commands() []command {
	return slices.Concat(
		serveCommands,
		demoCommands,
		accountCommands,
		keyCommands,
		leadCommands,
		licenseCommands,
		deviceCommands,
		widgetCommands,
		eventCommands,
		legacyCommands,
		storeCommands,
		helpCommands,
	)
}

// run is the whole program. args are the words after the program's name; getenv looks up
// environment variables. It returns when the command is done, or when ctx ends and what
// the command runs has stopped. A usageError means that args are wrong.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	syscall.Umask(0o077) // files that are created can be read by this user only
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
	e := &env{
		ctx:      ctx,
		getenv:   getenv,
		stdout:   stdout,
		stderr:   stderr,
		commands: all,
		command:  cmd,
		now:      time.Now,
	}
	if err := e.parse(rest); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return commandHelp(stdout, all, cmd)
		}
		return err
	}
	return cmd.run(e)
}
