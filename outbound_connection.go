package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// errChanged says that a row no longer has the revision that was read (compare-and-set), so that its caller
// must read it again and decide again.
var errChanged = errors.New("it has changed meanwhile")

// secretNames returns the form of each line of a file of secrets, such as "client_id=…", sorted.
func secretNames(fields map[string]*string) (lines []string) {
	for name := range fields {
		lines = append(lines, name+"=…")
	}
	slices.Sort(lines)
	return lines
}

// parseSecretLines parses text as parseSecrets does, into fields by name, all of which are required.
func parseSecretLines(fields map[string]*string, text string) error {
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		field := fields[name]
		switch {
		case !ok || field == nil:
			return fmt.Errorf("line %d is none of %s", number, strings.Join(secretNames(fields), ", "))
		case *field != "":
			return fmt.Errorf("%s appears twice", name)
		case value == "" || len(value) > maxSecret || strings.IndexFunc(value, isNotVisible) >= 0:
			return fmt.Errorf("%s must be 1 to %d visible ASCII characters", name, maxSecret)
		}
		*field = value
	}
	for _, line := range secretNames(fields) {
		if *fields[strings.TrimSuffix(line, "=…")] == "" {
			return fmt.Errorf("a line %s is missing", line)
		}
	}
	return nil
}

const maxSecretsFile = 16 << 10 // bytes

const maxSecret = 200 // characters
