package main

import "time"

// Applications of others that act for accounts (contract, section 13).

// The event types of applications. They are events of the account that owns the application.
var (
	appEvents eventTable

	eventAppRegistered    = appEvents.add("app.registered")
	eventAppUpdated       = appEvents.add("app.updated")
	eventAppVerified      = appEvents.add("app.verified")
	eventAppSecretRotated = appEvents.add("app.secret_rotated")
	eventAppRemoved       = appEvents.add("app.removed")
)

const (
	maxApps          = 20 // of an account
	maxAppName       = 60 // characters
	maxAppURL        = 500
	maxRedirectURIs  = 20
	maxAppOrigins    = 20
	appSecretOverlap = 7 * 24 * time.Hour // for which the secret before the last rotation is taken too
)
