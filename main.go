// Widgetd serves the public interface of products for restaurants that deliver: widgets, leads, licences, paid orders
// and books, from one binary and one SQLite file. See README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"sort"
	"strings"
	"sync"
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
	var status exitStatus
	if errors.As(err, &status) {
		os.Exit(int(status))
	}
	text := "widgetd: " + printableLines(err.Error())
	if isJournal(os.Stderr, os.Getenv) {
		text = forJournal(text)
	}
	fmt.Fprintln(os.Stderr, fitted(text, widthOf(os.Stderr, os.Getenv)))
	if errors.As(err, new(usageError)) {
		os.Exit(2)
	}
	os.Exit(1)
}

// tuneCollector lets the garbage collector run less often than by default, and sets a soft
// limit on memory. The environment variables GOGC and GOMEMLIMIT take precedence. It makes
// verify a twentieth faster and costs some 5 MiB; 400 would cost as much again for nothing.
func tuneCollector(getenv func(string) string) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(300)
	}
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(64<<20 + heldAtOnce) // beyond it the collector would take half of all time
	}
}

// allCommands are the program's own commands, and those of the nouns, sorted.
var allCommands = sync.OnceValue(func() []command {
	of, routes := nouns(), []route{}
	for _, w := range modulesOf(of, &server{authenticator: &authenticator{}, nouns: of, monotonic: time.Now}) {
		routes = append(routes, w.routes...)
	}
	kinds := collectNouns(of, func(n *noun) []idKind { return n.ids })
	all := collectNouns(of, func(n *noun) []command { return n.commands })
	for _, c := range collectNouns(of, func(n *noun) []routeCommand { return n.calls }) {
		var of *route
		if c.route != "" {
			of = &routes[slices.IndexFunc(routes, func(rt route) bool { return rt.pattern == c.route })]
		}
		all = append(all, c.command(of, kinds))
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].name < all[j].name })
	return slices.Concat(serveCommands, statusCommands, watchCommands, demoCommands, all, apiCommands, helpCommands)
})

// run is the whole program. args are the words after the program's name; getenv looks up
// environment variables. It returns when the command is done, or when ctx ends and what
// the command runs has stopped. A usageError means that args are wrong.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	return newEnv(ctx, getenv, stdout, stderr).dispatch(args)
}

// newEnv returns what a command of this process works with, see run.
func newEnv(ctx context.Context, getenv func(string) string, stdout, stderr io.Writer) *env {
	syscall.Umask(0o077) // files that are created can be read by this user only
	getenv = withoutReturn(getenv)
	e := &env{ctx: ctx, getenv: getenv, stdin: os.Stdin, stdout: stdout, stderr: stderr, nouns: nouns(),
		now: time.Now, synchronised: kernelSynchronised, installed: installedDir, uid: os.Geteuid(),
		caller: callingUser(getenv),
		canAsk: isTerminal(os.Stdin) && isTerminal(stderr), rewrites: isTerminal(stderr) && getenv("TERM") != "dumb"}
	e.commands = allCommands()
	return e
}

// withoutReturn looks up environment variables, whose values have no carriage return at the end: a file of them that
// was edited on Windows has one on each line.
func withoutReturn(getenv func(string) string) func(string) string {
	return func(name string) string { return strings.TrimSuffix(getenv(name), "\r") }
}

// dispatch runs the command that args name. It sets the fields of e that depend on them.
func (e *env) dispatch(args []string) error {
	if len(args) > 0 && args[0] == completeCommand {
		e.complete(args[1:])
		return nil
	}
	known := append(allOptions(e.commands), option{name: "help"}, option{name: "h"}, option{name: "version"},
		option{name: "v"})
	words, err := e.readLine(args, known)
	if err != nil {
		return err
	}
	if version := e.given("version") || e.given("v"); version && len(words) == 0 {
		delete(e.typed, "version")
		delete(e.typed, "v")
		words = []string{"version"}
	}
	e.values = e.typed // as far as help reads them
	help := e.given("help") || e.given("h")
	if len(words) > 1 && words[0] == "help" {
		words, help = words[1:], true
	}
	switch {
	case help && len(words) > 0:
		return e.helpOn(words)
	case help:
		return e.helpScreen(e.stdout)
	}
	cmd, rest := findCommand(e.commands, words)
	if cmd == nil {
		if len(words) > 0 {
			return e.unknownCommand(words)
		}
		e.helpScreen(e.stderr)
		return usageError("a command is missing")
	}
	e.command = cmd
	if err := e.take(rest); err != nil {
		return err
	}
	if err := e.resolveIDs(); err != nil {
		return err
	}
	return cmd.run(e)
}
