package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// errChanged says that a row has another revision than it was read with, so that what was decided about
// it is to be decided anew.
var errChanged = errors.New("it has changed meanwhile")

// secretNames returns the lines that secrets consist of: "client_id=…".
func secretNames(fields map[string]*string) (lines []string) {
	for name := range fields {
		lines = append(lines, name+"=…")
	}
	slices.Sort(lines)
	return lines
}

// parseSecretLines is parseSecrets for fields by name, all of which are needed.
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
