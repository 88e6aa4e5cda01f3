package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var signinShape = regexp.MustCompile(`^[0-9A-HJKMNP-TV-Z]{4}-[0-9A-HJKMNP-TV-Z]{4}-[0-9A-HJKMNP-TV-Z]{4}$`)

// signinCode makes a code to sign in with for an account, which is a secret.
func (s *service) signinCode(accountID string) (code string) {
	s.t.Helper()
	s.change(func(t *tx) error {
		made, err := makeSigninCode(t, s.keys, sessionConsent, accountID, "portal")
		if err == nil {
			code = made.Code
		}
		return err
	})
	s.told.confide(code)
	return code
}

// confide remembers secrets that have no shape of their own.
func (d *discretion) confide(secrets ...string) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, secret := range secrets {
		d.keep("a secret of somebody who signs in", secret)
		d.keep("a secret of somebody who signs in", strings.ReplaceAll(secret, "-", ""))
	}
}

func TestAccount_signinSaysForWhomUntilWhenAndWhereTheCodeIs(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		s.must("account", "set", s.account, "-zone", "Europe/Zurich")
		code, noted := s.noting("account", "signin", s.account)
		failIf(t, len(code) != len("XXXX-XXXX-XXXX\n"), "%q is not the code alone, for scripts", code)
		s.told.confide(strings.TrimSpace(code))
		equal(t, "note", noted, "for main, once, until 01:15 (Europe/Zurich), at "+testBase+"/oauth/signin\n")
		s.codeWorks(strings.TrimSpace(code), true, "the code does not work")
		_, noted = s.noting("account", "signin", s.account, "-json")
		equal(t, "note with -json", noted, "")
	})
}

// signInWith uses a code in the store, and returns the secret of the session.
func (s *service) signInWith(typed string) (secret string, err error) {
	s.t.Helper()
	err = s.store.update(s.t.Context(), func(t *tx) error {
		secret, err = signIn(t, s.keys, sessionConsent, typed, "")
		return err
	})
	s.told.confide(secret)
	return secret, err
}

// codeWorks checks whether a code signs somebody in; wrong says what it means if not.
func (s *service) codeWorks(code string, works bool, wrong string, args ...any) {
	s.t.Helper()
	_, err := s.signInWith(code)
	failIf(s.t, works && err != nil || !works && !errors.Is(err, errSigninCode), wrong+": %v", append(args, err)...)
}

// sessionLasts checks whether the session of a secret lasts; wrong says what it means if not.
func (s *service) sessionLasts(secret string, lasts bool, wrong string) {
	s.t.Helper()
	_, err := s.store.session(sessionConsent, secret, newStamp(s.store.now()))
	failIf(s.t, lasts && err != nil || !lasts && !errors.Is(err, errNotFound), "%s: %v", wrong, err)
}

func TestSignin_readsCodesAsPeopleTypeThem(t *testing.T) {
	t.Parallel()
	for typed, want := range map[string]string{
		"7K3M-Q9XD-2VTA": "7K3MQ9XD2VTA", "7k3mq9xd2vta": "7K3MQ9XD2VTA", " 7K3M\tQ9XD – 2VTA\n": "7K3MQ9XD2VTA",
		"olio-0000-0000": "011000000000",
		"7K3M-Q9XD-2VT":  "", "7K3M-Q9XD-2VTAA": "", "": "", "7K3M-Q9XD-2VTU": "", "7K3M_Q9XD_2VTA": "",
		"７K3M-Q9XD-2VTA": "", "7K3M-Q9XD-2VT\x00": "",
		"7K3M-Q9XD-2VTA" + strings.Repeat("-", 100): "",
	} {
		if got, ok := parseSigninCode(typed); ok != (want != "") || ok && got != want {
			t.Errorf("%q is read as %q %v, want %q", typed, got, ok, want)
		}
	}
	seen := map[string]bool{}
	for range 100 {
		code := newSigninCode()
		if plain, ok := parseSigninCode(strings.ToLower(code)); !ok || seen[plain] || !signinShape.MatchString(code) {
			t.Errorf("%q is no code, or came before", code)
		}
		seen[code] = true
	}
}

func TestSignin_anAccountHasTenCodesAndAHundredSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := quietService(t)
		var codes []string
		for range maxSigninCodes + 2 {
			codes = append(codes, s.signinCode(s.account))
			time.Sleep(time.Second)
		}
		for i, code := range codes[:2] {
			s.codeWorks(code, false, "code %d works", i)
		}
		first, err := s.signInWith(codes[2])
		s.check(err)
		time.Sleep(time.Second)
		second, err := s.signInWith(codes[3])
		s.check(err)
		elsewhere := s.addAccount("Another")
		others, err := s.signInWith(s.signinCode(elsewhere))
		s.check(err)
		time.Sleep(time.Second)
		s.change(func(t *tx) error {
			for i := range maxSessions - 2 {
				t.addSession(&session{Hash: hashOf(fmt.Sprint(i)), AccountID: s.account, Kind: sessionConsent,
					MadeBy: "x", CreatedAt: t.now, ExpiresAt: t.now.after(time.Hour)})
			}
			return nil
		})
		newest, err := s.signInWith(codes[4])
		s.check(err)
		s.sessionLasts(first, false, "the oldest session lasts")
		for _, secret := range []string{second, newest, others} {
			s.sessionLasts(secret, true, "a session has ended")
		}
		s.hasRows(maxSessions, `sessions WHERE account_id = ?`, s.account)
	})
}
