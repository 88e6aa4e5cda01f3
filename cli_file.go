package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// The files that a command works on, and the user as whom it does that.

// installedDir is where an installation on a server has its files.
const installedDir = "/var/lib/widgetd"

// file returns the path of the database ("db") or of the key file ("key"), see actAsOwner. Every command and the
// service ask here before they touch anything: what belongs to the database and is not its owner's is refused, see
// checkFiles.
func (e *env) file(name string) (string, error) {
	if err := e.actAsOwner(); err != nil {
		return "", err
	}
	path := e.files[name]
	owner, err := e.checkOwner(path)
	if err == nil {
		err = checkFiles(filesOf(path, name), 0, e.uid, owner)
	}
	return path, err
}

// actAsOwner decides where the files are, see locate. A program that root runs goes on with the rights of the owner of
// the database's directory, see becomeOwner.
func (e *env) actAsOwner() error {
	if e.files == nil {
		e.locate(e.isInstalled())
	}
	return e.becomeOwner(filepath.Dir(e.files["db"]))
}

// locate decides where the database and the key file are: where -db and -key say; without -db and without a database
// in the working directory, in the installation's directory, if there is one to use. Standard error says so, unless
// the installation is still to be made.
func (e *env) locate(installed bool) {
	e.files = map[string]string{"db": e.str("db"), "key": e.str("key")}
	if !installed || e.isSet(optDB) || fileExists(optDB.def) {
		return
	}
	e.files["db"] = filepath.Join(e.installed, e.str("db"))
	if !e.isSet(optKey) {
		e.files["key"] = filepath.Join(e.installed, e.str("key"))
	}
	if e.isInstalled() {
		e.note("using %s\n", e.files["db"])
	}
}

// isInstalled reports whether the installation has a database or a key file, or can't be looked into.
func (e *env) isInstalled() bool {
	for _, name := range []string{optDB.def, optKey.def} {
		if _, err := os.Stat(filepath.Join(e.installed, name)); e.installed != "" && !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// mayInstall reports whether there is a directory for an installation, and this user may make one there.
func (e *env) mayInstall() bool {
	info, err := os.Stat(e.installed)
	return err == nil && info.IsDir() && (e.uid == 0 || e.uid == ownerOf(info))
}

// userName returns the name of a user, or as sudo takes a user without a name: "#1000".
func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return "#" + strconv.Itoa(uid)
}

// callingUser returns the name of the system's user who runs the program, or called sudo to run it
// as another one; a number if the user has no name.
func callingUser(getenv func(string) string) string {
	if u, err := user.Lookup(getenv("SUDO_USER")); err == nil {
		return printable(u.Username)
	}
	uid := strconv.Itoa(os.Getuid())
	if u, err := user.LookupId(uid); err == nil {
		return printable(u.Username)
	}
	return uid
}

// nobodysGroup is the group of a program that acts as a user without a name, who has no groups that are known. On
// Debian nothing belongs to it.
const nobodysGroup = 65534

// becomeOwner gives up the rights of root, in the whole process and for good, for those of the user to whom the
// database's directory belongs, or what there is above it; so that what the command makes belongs to that user, and
// no link in the directory leads it to what only root may touch. If the directory belongs to root, or another user
// than root runs the program, it does nothing.
func (e *env) becomeOwner(dir string) error {
	if e.uid != 0 {
		return nil
	}
	there := dir
	info, err := os.Stat(there)
	for errors.Is(err, fs.ErrNotExist) && there != filepath.Dir(there) {
		there = filepath.Dir(there)
		info, err = os.Stat(there)
	}
	if err != nil {
		return nil // opening the database tells what is wrong
	}
	owner := ownerOf(info)
	if err := checkLinks(dir, owner); err != nil || owner == 0 {
		return err
	}
	group, groups := groupsOf(owner)
	err = errors.Join(syscall.Setgroups(groups), syscall.Setgid(group), syscall.Setuid(owner))
	if err == nil && syscall.Setuid(0) == nil {
		err = errors.New("root's rights can't be given up here")
	}
	if err != nil {
		name := userName(owner)
		return fmt.Errorf("become the user %s, to whom %s belongs: %w: run 'sudo -u %s widgetd %s …'",
			name, dir, err, name, e.command.name)
	}
	e.uid, e.wasRoot = owner, true
	return nil
}

// explainPermission adds to an error that root would not have met for which user the program acts, and the next step.
func (e *env) explainPermission(err error, step string) error {
	if !e.wasRoot || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return fmt.Errorf("%w for the user %s, to whom the database belongs: %s", err, userName(e.uid), step)
}

// nameAnother is the next step where that user may not write a file.
const nameAnother = "name a file where that user may write"

// makeDir makes a directory for a database and those above it, if they are not there, as the user to whom the lowest
// of those that are belongs. Root takes no link for it.
func (e *env) makeDir(dir string) error {
	if err := e.becomeOwner(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if _, err := os.Readlink(filepath.Clean(dir)); err == nil && e.uid == 0 {
		return fmt.Errorf("%s is a link: name the directory itself, %s", dir, realPath(dir))
	}
	return e.becomeOwner(dir) // of one that somebody else has made meanwhile
}

// checkLinks returns an error if a path leads over a symbolic link that belongs neither to root nor to the user.
func checkLinks(path string, uid int) error {
	at, err := filepath.Abs(path)
	for ; err == nil && at != "/"; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		if err != nil || info.Mode()&fs.ModeSymlink == 0 { // opening it tells what is wrong
			continue
		}
		if owner := ownerOf(info); owner != 0 && owner != uid {
			return fmt.Errorf("%s is a link of the user %s, which root does not follow: name what it leads to, if "+
				"that is what you mean", at, userName(owner))
		}
	}
	return err
}

// groupsOf returns the group of a user, and all groups.
func groupsOf(uid int) (group int, all []int) {
	group = nobodysGroup
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return group, nil
	}
	if number, err := strconv.Atoi(u.Gid); err == nil {
		group = number
	}
	names, _ := u.GroupIds() // without them it may do less
	for _, name := range names {
		if number, err := strconv.Atoi(name); err == nil {
			all = append(all, number)
		}
	}
	return group, all
}

// checkOwner returns to whom a file belongs, or this user if it is not there. The error has the next step if this user
// should not work on a file that belongs to another: as root, or without the right to look into its directory.
func (e *env) checkOwner(path string) (owner int, err error) {
	foreign := e.uid == 0
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrPermission) {
		foreign = true
		info, err = os.Stat(filepath.Dir(path))
	}
	if err != nil {
		return e.uid, nil // opening the file will tell what is wrong
	}
	owner = ownerOf(info)
	if name := userName(owner); foreign && owner != e.uid {
		return owner, fmt.Errorf("%s belongs to the user %s: run 'sudo -u %s widgetd %s …'",
			path, name, name, e.command.name)
	}
	return owner, nil
}

// checkFiles returns an error with the next step if one of the files that belong together is there, and belongs to
// none of the users or is no file; the first may be a link. Whoever may write in their directory could have put it
// there, to have SQLite or this program take over what it says.
func checkFiles(files []string, users ...int) error {
	for _, file := range files {
		info, err := os.Lstat(file)
		switch {
		case err != nil: // it is not there, or opening it will tell what is wrong
		case !slices.Contains(users, ownerOf(info)):
			return fmt.Errorf("%s belongs to the user %s, so nothing was opened: look at it, remove it, and let "+
				"nobody else write in its directory", file, userName(ownerOf(info)))
		case file != files[0] && info.Mode().Type()&^(fs.ModeSocket|fs.ModeDir) != 0:
			return fmt.Errorf("%s is no file, so nothing was opened: remove it", file)
		}
	}
	return nil
}

// target returns the path, without links, of a file that the operator names for writing. The error has the next step if
// it is one of the service's own, there or not; or if others than root and this user may write in its directory, or
// lead the path elsewhere: they could put something else in place of what is being written.
func (e *env) target(name string) (string, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(name))
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	for at := dir; err == nil && at != "/"; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if err != nil {
			return "", err
		}
		open := info.Mode().Perm()&0o022 != 0 && (at == dir || info.Mode()&fs.ModeSticky == 0)
		if owner := ownerOf(info); open || owner != 0 && owner != e.uid {
			return "", fmt.Errorf("others may write in %s, which belongs to the user %s (mode %04o), and could "+
				"replace the file: name one in a directory of yours or root's where nobody else may",
				at, userName(owner), info.Mode().Perm())
		}
	}
	path := filepath.Join(dir, filepath.Base(name))
	if err == nil && slices.Contains(e.ownFiles(), path) {
		err = fmt.Errorf("%s is one of the service's own files: name another one", path)
	}
	return path, err
}

// ownFiles returns the paths, their directories without links, of the files of the database and of the key file.
func (e *env) ownFiles() (all []string) {
	for _, own := range append(filesOf(e.files["db"], "db"), filesOf(e.files["key"], "key")...) {
		if dir, err := filepath.Abs(realPath(filepath.Dir(own))); err == nil {
			all = append(all, filepath.Join(dir, filepath.Base(own)))
		}
	}
	return all
}

// errInterrupted is the error of what the program was told to stop, by Ctrl-C for one.
var errInterrupted = errors.New("it was interrupted")

// A stoppable reader ends once the program is told to stop, also while it waits for somebody to type.
type stoppable struct {
	ctx  context.Context
	from io.Reader
}

func (s stoppable) Read(p []byte) (int, error) {
	var n int
	var err error
	buffer, read := make([]byte, len(p)), make(chan struct{})
	go func() {
		n, err = s.from.Read(buffer)
		close(read)
	}()
	select {
	case <-read:
		return copy(p, buffer[:n]), err
	case <-s.ctx.Done():
		return 0, errInterrupted
	}
}

// open opens a file that the operator has named for reading, as the user as whom commands act; "-" is standard input.
// Root, where a database is root's, follows no link of another user.
func (e *env) open(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(stoppable{e.ctx, e.stdin}), nil
	}
	var err error
	if e.uid == 0 {
		err = e.actAsOwner()
	}
	if e.uid == 0 && err == nil {
		err = checkLinks(name, 0)
	}
	if err != nil {
		return nil, err
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, e.explainPermission(err, "have your shell open it, as - <"+name)
	}
	return file, nil
}

// maxSimilar is how many others a command that erases lists that resemble what it erased.
const maxSimilar = 20

// eraseFromWAL truncates the write-ahead log after so much was erased from the database, unless -litestream is given,
// and returns what is to be said of where it still is, also in copies from before an upgrade, whose paths it returns.
func (e *env) eraseFromWAL(st *store, what string, erased int64) (note string, copies []string) {
	const nothing, backups = "nothing was found", "backups still hold it until they are deleted"
	var err error
	if !e.on("litestream") {
		err = st.truncateWAL(lockTimeout)
	}
	if erased == 0 && err != nil {
		what = nothing + "; what was erased before"
	}
	switch {
	case err != nil:
		note = what + " is not in the database file any more, but still in its write-ahead log: " +
			"run this again once nobody has a transaction open (" + err.Error() + "); " + backups
	case erased == 0:
		note = nothing
	case e.on("litestream"):
		note = what + " is not in the database file any more; the write-ahead log, the replica and backups " +
			"hold it until their retention ends"
	default:
		note = what + " is neither in the database file nor in its write-ahead log any more; " + backups
	}
	if copies = append(upgradeCopies(st.path), movedAsideOf(realPath(st.path))...); len(copies) > 0 {
		note += "; copies that were written before an upgrade or a restore still hold it, so remove them: " +
			strings.Join(copies, ", ")
	}
	return note, append([]string{}, copies...)
}
