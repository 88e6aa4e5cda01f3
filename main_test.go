package main

import (
	"bytes"
	"testing"
)

// runOK runs a command that must succeed and returns what it printed.
func runOK(t testing.TB, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if err := run(t.Context(), args, func(string) string { return "" }, &stdout, &stderr); err != nil {
		t.Fatalf("widgetd %q: %v\n%s%s", args, err, stdout.String(), stderr.String())
	}
	return stdout.String()
}
