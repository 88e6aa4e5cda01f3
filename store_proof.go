package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// What is known of whether the replica and the backups can be restored: what was restored last and found good.

// The places from which a database is restored.
const (
	proofReplica = "replica"
	proofBackup  = "backup"
)

// proofOverdue is how old the last proof is when health warns: it is made once a day, and an hour later at most.
const proofOverdue = 26 * time.Hour

// What health says of a proof that is overdue, by what would be restored.
var faultsUnproven = map[string]string{
	proofReplica: "for 26 hours nothing has proven that the replica can be restored",
	proofBackup:  "for 26 hours nothing has proven that a backup can be restored",
}

// A proof is what is known of restoring from one place.
type proof struct {
	What       string `json:"what"`
	DueSince   stamp  `json:"due_since"`  // from when on a first one is due
	TriedAt    stamp  `json:"tried_at"`   // zero: never
	ProvedAt   stamp  `json:"proved_at"`  // zero: never
	Behind     int64  `json:"behind"`     // seconds until the replica had what was written when the try began
	Bytes      int64  `json:"bytes"`      // of what was restored
	TXID       string `json:"txid"`       // Litestream's number of its last transaction
	Litestream string `json:"litestream"` // its version at the last try
	Fault      string `json:"fault"`      // what failed in the last try; "": nothing
}

// since returns from when on the next proof is waited for.
func (p *proof) since() stamp {
	if p.ProvedAt.IsZero() {
		return p.DueSince
	}
	return p.ProvedAt
}

// proof returns what is known of restoring from one place; nil: nothing, and no proof is due.
func (q *queries) proof(what string) (*proof, error) {
	p := &proof{}
	err := q.one(`SELECT what, due_since, tried_at, proved_at, behind, bytes, txid, litestream, fault FROM proofs
		WHERE what = ?`, []any{what}, &p.What, &p.DueSince, &p.TriedAt, &p.ProvedAt, &p.Behind, &p.Bytes, &p.TXID,
		&p.Litestream, &p.Fault)
	return orNil(p, err)
}

// wantedProof is proof of the place that counts: the replica where Litestream replicates, else the backups.
func (s *store) wantedProof() (*proof, error) {
	if s.noCheckpoints {
		return s.proof(proofReplica)
	}
	return s.proof(proofBackup)
}

// wantProof has proofs of one place be due from now on, unless they are already.
func (t *tx) wantProof(what string) {
	t.exec(`INSERT OR IGNORE INTO proofs (what, due_since, mark) VALUES (?, ?, '')`, what, t.now)
}

// forgetProofs makes a promoted database be proven anew: its replica begins with it.
func (t *tx) forgetProofs() error {
	t.exec(`UPDATE proofs SET due_since = ?, proved_at = NULL, fault = '' WHERE what = ?`, t.now, proofReplica)
	return nil
}

// markProof begins a try: what is restored must have the mark.
func (t *tx) markProof(what, mark string) {
	t.wantProof(what)
	t.exec(`UPDATE proofs SET mark = ?, tried_at = ? WHERE what = ?`, mark, t.now, what)
}

// endProof writes down what has come of a try.
func (t *tx) endProof(p *proof) {
	t.exec(`UPDATE proofs SET litestream = ?, fault = ? WHERE what = ?`, p.Litestream, p.Fault, p.What)
	if p.Fault == "" {
		t.exec(`UPDATE proofs SET proved_at = ?, behind = ?, bytes = ?, txid = ? WHERE what = ?`, t.now, p.Behind,
			p.Bytes, p.TXID, p.What)
	}
}

// rowCounts are how many rows there are of accounts, licences, orders and payments, of which none is ever removed.
func (q *queries) rowCounts() (n [4]int64, err error) {
	err = q.one(`SELECT (SELECT count(*) FROM accounts), (SELECT count(*) FROM licenses),
		(SELECT count(*) FROM orders), (SELECT count(*) FROM payments)`, nil, &n[0], &n[1], &n[2], &n[3])
	return n, err
}

// fitsMark returns an error unless a restored copy has the mark, the epoch, and as many rows as there were when the
// mark was written, or more, but no more than there are now.
func (q *queries) fitsMark(what, mark string, in epoch, then, now [4]int64) error {
	has, err := oneValue[string](q, `SELECT mark FROM proofs WHERE what = ?`, what)
	if err = except(err, errNotFound); err != nil || has != mark {
		return errors.Join(errors.New("it does not have what was written just before: "+
			"it is of another database, or of an earlier time"), err)
	}
	was, err := q.epoch()
	if err != nil || was.String() != in.String() {
		return errors.Join(fmt.Errorf("it is of the epoch %s, and this database of %s", was.variable(), in.variable()),
			err)
	}
	counts, err := q.rowCounts()
	for i, n := range counts {
		if n < then[i] || n > now[i] {
			err = errors.Join(err, fmt.Errorf("it has %v accounts, licences, orders and payments, and there were %v "+
				"before and are %v now", counts, then, now))
			break
		}
	}
	return err
}

var errProofRuns = errors.New("another proof is being made")

// A proofDir is a directory of its own in which a copy is restored, mode 0700. Whoever has it open has locked it.
type proofDir struct{ *os.File }

// proofPath returns the path of that directory: widgetd.proof beside widgetd.db, or in another directory.
func proofPath(db, dir string) string {
	name := strings.TrimSuffix(filepath.Base(db), ".db") + ".proof"
	if dir == "" {
		dir = filepath.Dir(realPath(db))
	}
	return filepath.Join(dir, name)
}

// openProofDir makes the directory, or takes the one that a killed run has left, and removes what is in it. No link is
// followed there.
func openProofDir(path string) (d proofDir, err error) {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return d, err
	}
	d.File, err = os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return d, err
	}
	info, err := d.Stat()
	switch {
	case err != nil:
	case ownerOf(info) != os.Geteuid() || info.Mode().Perm() != 0o700:
		err = fmt.Errorf("%s is not this program's: remove it", path)
	case syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil:
		err = errProofRuns
	default:
		err = d.clear()
	}
	if err != nil {
		d.Close()
	}
	return d, err
}

// clear removes what is in the directory.
func (d proofDir) clear() error {
	entries, err := os.ReadDir(d.Name())
	for _, entry := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(d.Name(), entry.Name())))
	}
	return err
}

// remove removes the directory with what is in it.
func (d proofDir) remove() error {
	return errors.Join(d.clear(), os.Remove(d.Name()), d.Close())
}

// removeLeftProof removes the directory beside a database that a killed run has left.
func removeLeftProof(db string) error {
	if _, err := os.Lstat(proofPath(db, "")); err != nil {
		return nil
	}
	d, err := openProofDir(proofPath(db, ""))
	if err != nil {
		return err
	}
	return d.remove()
}
