package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// An epoch is the time between two promotions of a database ('widgetd promote'): the machine of the highest one
// serves. Its name is random, so that two machines that were promoted to the same number tell each other apart.
type epoch struct {
	Number  int64  `json:"number"` // 0: never promoted
	Name    string `json:"name"`
	Known   int64  `json:"known"` // the highest number that this machine has heard of
	BeganAt stamp  `json:"began_at"`
}

// String returns the epoch as the path of a replica names it: "2-Zk3…".
func (e epoch) String() string { return fmt.Sprintf("%d-%s", e.Number, e.Name) }

// variable returns the epoch as epochVariable has it: "0" of a database that was never promoted.
func (e epoch) variable() string { return strings.TrimSuffix(e.String(), "-") }

// epoch returns the epoch of the database, of number 0 if it was never promoted.
func (q *queries) epoch() (e epoch, err error) {
	err = q.one(`SELECT number, name, began_at FROM epoch`, nil, &e.Number, &e.Name, &e.BeganAt)
	e.Known = e.Number
	return e, err
}

// setEpoch begins an epoch.
func (t *tx) setEpoch(e epoch) {
	t.exec(`UPDATE epoch SET number = ?, name = ?, began_at = ?`, e.Number, e.Name, t.now)
}

// lastWritten returns the latest time that the database tells of: of an event, of health's proof, of the clock. It
// reads one row of each.
func (q *queries) lastWritten() (at stamp, err error) {
	return oneValue[stamp](q, `SELECT max(at) FROM (
		SELECT * FROM (SELECT at FROM events ORDER BY seq DESC LIMIT 1)
		UNION ALL SELECT seen_at FROM clock UNION ALL SELECT written_at FROM probes)`)
}

// errFenced is the error of every write once another machine serves in a later epoch.
var errFenced = &refusal{code: codeStorage, detail: "Another machine serves now; nothing was written."}

// What health says of a machine on which nothing is written any more.
const (
	reasonSuperseded = "the peer serves in a later epoch: nothing is written, paid, posted or sent here any more"
	reasonStandby    = "this machine is the standby"
	reasonFollowed   = "'litestream restore -f' has been started on the database: nothing is written here any more"
)

// A role is what a machine may do beside the other one of a pair; all of them without one.
type role int

const (
	roleAlone   role = iota // everything
	dutyWaiting             // whatever stays here: the other machine may pay, post and send
	roleFenced              // only read, until the next start
	roleStandby             // nothing, since Litestream writes the file: only health and the peer are answered
)

// A machineState is the role of a machine, and what health says of it; "": all is well.
type machineState struct {
	role   role
	reason string
}

// machineState returns what this machine may do.
func (w *writer) machineState() machineState {
	if now := w.state.Load(); now != nil {
		return *now
	}
	return machineState{}
}

// fenced reports whether nothing may be written.
func (w *writer) fenced() bool { return w.machineState().role >= roleFenced }

// standsBy reports whether this machine is the standby, whose store has no file.
func (w *writer) standsBy() bool { return w.machineState().role == roleStandby }

// waits reports whether nothing outside may be asked.
func (w *writer) waits() bool { return w.machineState().role != roleAlone }

// become changes the standing. It reports false if that is the same already, or if this machine is fenced or the
// standby, for good.
func (w *writer) become(next machineState) bool {
	for {
		old, now := w.state.Load(), w.machineState()
		if now == next || now.role == roleFenced || now.role == roleStandby && next.role != roleStandby {
			return false
		}
		if w.state.CompareAndSwap(old, &next) {
			return true
		}
	}
}

// epochVariable is the environment variable from which Litestream's configuration takes the path of its replica.
const epochVariable = "WIDGETD_EPOCH"

// epochPath returns the path of the file beside a database that names its epoch, for the unit of Litestream.
func epochPath(db string) string { return strings.TrimSuffix(realPath(db), ".db") + ".epoch" }

// heardPath returns the path of the file beside a database in which a machine keeps the latest epoch of its peer of
// which it has heard, in the form of that file.
func heardPath(db string) string { return strings.TrimSuffix(realPath(db), ".db") + ".heard" }

// watchPath returns the path of the file beside a database with the addresses for 'widgetd watch'.
func watchPath(db string) string { return strings.TrimSuffix(realPath(db), ".db") + ".watch" }

// toldPath returns the path of the file beside a database with what that has told.
func toldPath(db string) string { return strings.TrimSuffix(realPath(db), ".db") + ".told" }

// startsPath returns the path of the file beside a database with the starts that nobody has asked for.
func startsPath(db string) string { return strings.TrimSuffix(realPath(db), ".db") + ".starts" }

// outdates reports whether a copy of another epoch has missed what this one, of which was heard, has brought.
func (e epoch) outdates(copied epoch) bool {
	return e.Number >= copied.Number && e.String() != copied.String()
}

// socketPath returns the path of the socket of the service over a database: widgetd.sock beside widgetd.db.
func socketPath(db string) string { return strings.TrimSuffix(realPath(db), ".db") + ".sock" }

// litestreamPath returns the directory in which Litestream keeps what it has replicated of a database last.
func litestreamPath(db string) string {
	db = realPath(db)
	return filepath.Join(filepath.Dir(db), "."+filepath.Base(db)+"-litestream")
}

// writeEpochFile names an epoch in a file beside a database: see epochPath and heardPath.
func writeEpochFile(path string, e epoch) error {
	if err := os.Remove(path + ".new"); err != nil && !os.IsNotExist(err) { // of a promotion that was killed
		return err
	}
	return writeAtomically(path, true, func(f *os.File) error {
		_, err := fmt.Fprintf(f, "%s=%s\n", epochVariable, e)
		return err
	})
}

// readEpochFile returns number and name of the epoch in a file beside a database; zero if there is no file.
func readEpochFile(path string) (e epoch, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return e, nil
	}
	value, found := strings.CutPrefix(strings.TrimSpace(string(text)), epochVariable+"=")
	number, name, _ := strings.Cut(value, "-")
	e.Name = name
	if err == nil {
		e.Number, err = strconv.ParseInt(number, 10, 64)
	}
	if err != nil || !found || e.Number < 0 {
		return epoch{}, fmt.Errorf("%s does not name an epoch as %s=2-name: "+
			"copy it from the other machine, or remove it", path, epochVariable)
	}
	return e, nil
}

// epochsBeside returns the epochs that the files beside a database name: its own, and that of the peer of which this
// machine has heard, zero if its own is later, since it was promoted then.
func epochsBeside(db string) (named, heard epoch, err error) {
	named, err = readEpochFile(epochPath(db))
	heard, heardErr := readEpochFile(heardPath(db))
	if heard.Number < named.Number {
		heard = epoch{}
	}
	return named, heard, errors.Join(err, heardErr)
}

// laterEpoch returns the number of the epoch of the peer of which a machine has heard, from the file beside a database;
// 0: of none that counts. Without that file no other is read, so that a fault there stops nobody without a peer.
func laterEpoch(db string) (int64, error) {
	if !fileExists(heardPath(db)) {
		return 0, nil
	}
	_, heard, err := epochsBeside(db)
	return heard.Number, err
}

// followerPath returns the path of the file in which 'litestream restore -f' notes how far it has got. As long as it
// is there, the database is Litestream's: its pages may be of different transactions.
func followerPath(db string) string { return realPath(db) + "-txid" }

// promotingPath returns the path to which promote moves that file first. Without it Litestream refuses to go on, so
// that a promotion that was broken off is only finished by another one.
func promotingPath(db string) string { return realPath(db) + "-promoting" }

// checkNotFollowed returns an error if a database is a copy that 'litestream restore -f' writes, or one whose
// promotion was broken off.
func checkNotFollowed(db string) error {
	if _, err := os.Stat(promotingPath(db)); err == nil {
		return fmt.Errorf("%s was not promoted to its end: run 'widgetd promote' again", db)
	}
	info, err := os.Stat(followerPath(db))
	if err != nil {
		return nil
	}
	text, _ := os.ReadFile(followerPath(db)) // Litestream replaces it with each change that it takes over
	return fmt.Errorf("%s is written by 'litestream restore -f' (TXID %s, since %s), and must not be opened: to "+
		"serve it, stop that and run 'widgetd promote'", db, bytes.TrimSpace(text), newStamp(info.ModTime()))
}

// isOpenElsewhere reports whether another process has a file open. A lease that is asked for writing is granted only
// if nobody has (fcntl(2), F_SETLEASE). Where the file system knows no leases, it looks at the open files of those
// processes that this user may look at. This process must not have the file open.
func isOpenElsewhere(path string) (open bool, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return false, err
	}
	var refused syscall.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, refused = syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_SETLEASE, syscall.F_WRLCK)
	})
	if err != nil || refused == 0 || refused == syscall.EAGAIN {
		return refused == syscall.EAGAIN, err
	}
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	files, err := filepath.Glob("/proc/[0-9]*/fd/*")
	own := fmt.Sprintf("/proc/%d/", os.Getpid())
	for _, file := range files {
		if other, err := os.Stat(file); err == nil && os.SameFile(info, other) && !strings.HasPrefix(file, own) {
			return true, nil
		}
	}
	return false, err
}
