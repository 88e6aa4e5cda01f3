package main

import (
	"cmp"
	"fmt"
	"time"
)

// What a service finds to be wrong with itself. Health tells the first of these that fails or, if none does, the first
// that warns.

// serviceTroubles are the troubles of the service itself, in the order in which health tells them.
var serviceTroubles = []trouble{
	{kind: "service_stops", urgency: whenSeen, health: healthFail, one: "$what",
		inService: func(s *server) (occurrence, error) {
			return occursIf(s.draining.Load(), stamp{}, storageReason(errClosed), ""), nil
		}},
	{kind: "pair_superseded", urgency: rings, health: healthFail, one: "$what",
		advice:    ": stop this machine, and make it the standby with 'pair follow'",
		inService: findState("pair_superseded")},
	{kind: "pair_followed", urgency: rings, health: healthFail, one: "$what",
		advice: ": stop that and the service, and restore the file", inService: findState("pair_followed")},
	{kind: "database_fails", urgency: rings, health: healthFail, one: "requests fail: $what",
		advice: ": 'journalctl -u widgetd -n 50'", inService: probeIs(healthFail)},
	{kind: "damage_written", urgency: rings, health: healthFail, one: "damage was met since $since ($id)",
		advice: damageAdvice, inService: findDamage(true, damageWrittenReason)},
	{kind: "database_waits", urgency: sameDay, health: healthWarn, one: "$what",
		advice: ": end the other program's transaction, or look at the disk", inService: probeIs(healthWarn)},
	{kind: "damage_read", urgency: rings, health: healthWarn, one: "damage was met since $since ($id)",
		advice: damageAdvice, inService: findDamage(false, damageReadReason)},
	{kind: "rows_unreadable", urgency: sameDay, health: healthWarn, one: "$id: what needs it fails or waits",
		many: "$id: what needs them fails or waits", advice: ": run 'widgetd check'",
		inService: func(s *server) (f occurrence, err error) {
			var rows []string
			for _, row := range s.store.faults.rowsMet() {
				rows = append(rows, row.Error())
			}
			f = foundList(rows)
			f.What = rowsUnreadReason
			return f, nil
		}},
	{kind: "log_large", urgency: sameDay, health: healthWarn, one: "$what ($id)",
		advice: ": end that transaction, or see that Litestream runs",
		inService: func(s *server) (occurrence, error) {
			size := s.store.walSize()
			return occursIf(size > s.store.maxWAL, stamp{}, s.walReason(), sizeText(size)), nil
		}},
	{kind: "key_file", urgency: sameDay, health: healthWarn, one: "the key file can't be used: $id",
		inService: func(s *server) (occurrence, error) {
			return occursIf(s.keysStale.Load(), stamp{}, faultKeyFile, "the keys loaded before stay in use"), nil
		},
		outside: func(v *statusView) (occurrence, error) { // who can say why
			_, _, err := v.env.loadKeys()
			return occursIf(err != nil, stamp{}, "", fmt.Sprint(err)), nil
		}},
	{kind: "clock_doubted", urgency: rings, health: healthWarn, one: "$what", advice: clockAdvice,
		inService: func(s *server) (occurrence, error) {
			fault := s.compareClock(s.readClocks())
			return occursIf(fault == clockAhead || fault == clockFarAhead, stamp{}, string(fault), ""), nil
		}},
	{kind: "clock_behind", urgency: sameDay, health: healthWarn, one: "$what", advice: clockAdvice,
		inService: func(s *server) (occurrence, error) {
			fault := s.compareClock(s.readClocks())
			return occursIf(fault == clockBehind, stamp{}, string(fault), ""), nil
		}},
	unproven("replica_unproven", proofReplica, "run 'widgetd replica verify', or enable widgetd-replica.timer"),
	unproven("backup_unproven", proofBackup, "look at 'journalctl -u widgetd-backup'"),
	{kind: "pair_silent", urgency: rings, health: healthWarn, one: "$what",
		advice:    ": start the peer, or if it is off for certain, 'widgetd peer ignore'",
		inService: findState("pair_silent")},
	{kind: "standby_behind", urgency: rings, health: healthWarn, one: "$what",
		advice: ": on the standby 'journalctl -u widgetd-follow'", inService: findState("standby_behind")},
	{kind: "pair_holds", urgency: rings, health: healthWarn, one: "$what",
		advice:    ": stop the machine that is not to serve, and 'widgetd promote' on the other",
		inService: findState("pair_holds")},
	{kind: "requests_fail", urgency: rings, one: "$n answer of the last five minutes was an error of the server",
		many:   "$n answers of the last five minutes were errors of the server",
		advice: ", and more than one of fifty: 'journalctl -u widgetd -n 50'",
		inService: func(s *server) (occurrence, error) {
			failed, all := s.metrics.failing(s.monotonic())
			if failed < leastFailed || failed*failedShare <= all {
				failed = 0
			}
			return occurrence{Count: int(failed)}, nil
		}},
	{kind: "disk_short", urgency: rings, one: "the disk of the database has $id left", advice: ": make room",
		inService: func(s *server) (occurrence, error) {
			free, known := s.freeDisk()
			is := known && (free < leastFree || free < s.store.databaseSize()/4)
			return occursIf(is, stamp{}, "", sizeText(free)), nil
		}},
	{kind: "calls_fail", urgency: rings, one: callsFailAlike + " since $since $what",
		inService: func(s *server) (occurrence, error) {
			fault, since := s.outbound.reach.failing()
			return occursIf(fault != "", newStamp(since), fmt.Sprintf("(%s): %s", fault, callFaults[fault]), ""), nil
		}},
	{kind: "no_authorities", urgency: rings, one: noRootsText, advice: ": " + callFaults[callUnverified],
		inService: func(s *server) (occurrence, error) { return occursIf(s.noRoots, stamp{}, "", ""), nil }},
}

const (
	damageAdvice = ": run 'widgetd check'; if it finds faults, restore a backup"
	clockAdvice  = ": set the clock right, or if it is right, run 'widgetd clock accept'"

	leastFailed = 3         // errors of the server within five minutes that are told, if they are
	failedShare = 50        // more than one of so many answers
	leastFree   = 200 << 20 // bytes on the disk; a quarter of the database is the least, too
)

// findState finds what a machine of a pair may not do.
func findState(kind string) func(s *server) (occurrence, error) {
	return func(s *server) (occurrence, error) {
		now := s.store.machineState()
		return occursIf(now.trouble() == kind, stamp{}, now.reason, ""), nil
	}
}

// trouble returns the kind of trouble that a standing is; "": none. A reason that is nowhere named holds the machine,
// or ends it.
func (now machineState) trouble() string {
	switch {
	case now.reason == reasonSilent:
		return "pair_silent"
	case now.reason == reasonBehind:
		return "standby_behind"
	case now.reason == reasonFollowed:
		return "pair_followed"
	case now.role == roleFenced:
		return "pair_superseded"
	case now.reason != "":
		return "pair_holds"
	}
	return ""
}

// probeIs finds what the last probe of the database says.
func probeIs(status healthStatus) func(s *server) (occurrence, error) {
	return func(s *server) (occurrence, error) {
		last := s.lastHealth()
		return occursIf(last.Status == status, stamp{}, last.Output, ""), nil
	}
}

// findDamage finds damage that a write came upon, or only reads.
func findDamage(write bool, reason string) func(s *server) (occurrence, error) {
	return func(s *server) (occurrence, error) {
		met := s.store.faults.damageMet()
		if met == nil || met.Write != write {
			return occurrence{}, nil
		}
		return occurrence{Count: 1, Since: met.At, What: reason,
			ID: cmp.Or(met.Table, "the file") + ": " + met.Error}, nil
	}
}

// unproven is that nothing has proven for proofOverdue that what is kept in one place can be restored.
func unproven(kind, place, advice string) trouble {
	overdue := func(p *proof, now time.Time) occurrence {
		if p == nil || p.What != place || now.Sub(p.since().Time) <= proofOverdue {
			return occurrence{}
		}
		return occurrence{Count: 1, Since: p.since(), What: faultsUnproven[place]}
	}
	return trouble{kind: kind, urgency: sameDay, health: healthWarn,
		one: "nothing has proven since $since that the " + place + " can be restored", advice: ": " + advice,
		inService: func(s *server) (occurrence, error) {
			s.health.mu.Lock()
			defer s.health.mu.Unlock()
			return overdue(s.health.proof, s.now()), nil
		},
		inFile: func(v *statusView) (occurrence, error) {
			p, err := v.proofOf(place)
			return overdue(p, v.now), err
		}}
}

// proofFailed is that the last try to restore from one place has failed.
func proofFailed(kind, place string) trouble {
	return trouble{kind: kind, urgency: rings,
		one: "the last try to restore the " + place + ", at $since, has failed: $id",
		inFile: func(v *statusView) (occurrence, error) {
			p, err := v.proofOf(place)
			if err != nil || p == nil {
				return occurrence{}, err
			}
			return occursIf(p.Fault != "", p.TriedAt, "", p.Fault), nil
		}}
}

// proofOf returns what is known of restoring from a place; nil: nothing, or another place counts.
func (v *statusView) proofOf(place string) (*proof, error) {
	if v.service != nil && v.litestream() != (place == proofReplica) || place == proofBackup && v.litestream() {
		return nil, nil
	}
	return v.proof(place)
}

// ownTroubles returns what the service knows of itself, for the status command.
func (s *server) ownTroubles() []occurrence {
	found := []occurrence{}
	for _, t := range s.kinds {
		if t.inService == nil {
			continue
		}
		if f, err := t.inService(s); err == nil && f.Count > 0 {
			f.Kind = t.kind
			found = append(found, f)
		}
	}
	return found
}
