package main

import (
	"fmt"
	"strings"
	"time"
)

// upgradeCommand brings an older database to this program's schema. systemd runs it
// before every start.
func upgradeCommand(e *env) error {
	report, err := upgradeFile(e.ctx, e.str("db"), upgradeOptions{
		dryRun: e.on("dry-run"), noCopy: e.on("no-copy"), now: e.now,
		progress: func(text string) { fmt.Fprintln(e.stderr, text) },
	})
	if err != nil {
		return err
	}
	return e.print(report, upgradeText(e.str("db"), report))
}

// upgradeText is a report of an upgrade for people.
func upgradeText(db string, r *upgradeReport) string {
	if len(r.Steps) == 0 {
		return fmt.Sprintf("%s: has schema version %d, as this program needs it; nothing to do", db, r.To)
	}
	took := func(milliseconds int64) string {
		return (time.Duration(max(1, milliseconds)) * time.Millisecond).String()
	}
	did := "upgraded"
	if r.DryRun {
		did = "can be upgraded"
	}
	lines := []string{
		fmt.Sprintf("%s: %s from schema version %d to %d (%s)", db, did, r.From, r.To, took(r.Milliseconds)),
	}
	for _, step := range r.Steps {
		rows := ""
		if step.Rows > 0 {
			rows = fmt.Sprintf("%d rows, ", step.Rows)
		}
		line := fmt.Sprintf("version %d: %s (%s%s)", step.To, step.Does, rows, took(step.Milliseconds))
		lines = append(lines, line)
	}
	switch {
	case r.DryRun:
		lines = append(lines, "this was a dry run: nothing was changed")
	case r.Copy != nil:
		lines = append(lines, "the database as it was: "+*r.Copy+
			"; remove it once you are sure that you will not go back")
	}
	return strings.Join(lines, "\n")
}
