/* SPDX-License-Identifier: Apache-2.0 */
/* redfish: the readings of one BMC, again and again. A round walks the BMC's documents by their links, one request at a
 * time, because BMCs are slow. Credentials are used for a session, which is kept over the rounds and ended by
 * redfish_bmc_close, since a BMC has few; a BMC without sessions gets them with each request. A round that fails leaves
 * the readings of the last one, which become stale. After a failure the next round waits longer, up to 5 minutes; after
 * refused credentials up to 15 minutes, so that no account is locked, but no longer than until the password file changes.
 *
 * Readings are fresh for three intervals and twice the time that the round took.
 *
 * Bounds of a BMC: 256 KiB of a document, 256 documents waiting and 1,024 requests in a round; 256 readings; the times
 * of the configuration. Memory: some 100 KiB, and some 500 KiB while a round is under way.
 * Redirects to another host are not followed. One loop, its thread; never waits. */
#pragma once
#include "io/os/loop/loop.h"
#include "policy/power/power/power.h"
#include "policy/power/redfish/redfish.h"

#define REDFISH_MAX_READINGS 256
#define REDFISH_MAX_WAITING  256
#define REDFISH_MAX_REQUESTS 1024
#define REDFISH_MAX_DOCUMENT ((size_t)256 << 10)

struct redfish_bmc;
struct redfish_bmc_cfg {
	const char *url;           /* https://HOST[:PORT], with or without /redfish/v1 */
	const char *node;          /* The cluster's id of the machine; "": readings belong to no node */
	const char *user;          /* NULL: no credentials */
	const char *password_file; /* The password is its first line, read in each round */
	const char *ca_file;       /* NULL: the system's authorities */
	const char *fingerprint;   /* As tls_cfg.pin; NULL: authorities judge */
	cgn_nsec
		timeout; /* Longest silence in an answer; an answer may take twice as long, a round six times */
	cgn_nsec interval; /* From the end of a round to the begin of the next */
	cgn_nsec delay;    /* Before the first round */
};
/* Check the settings that need no BMC: the URL, the files, the fingerprint. The message names the error. */
CGN_RC redfish_bmc_check(const struct redfish_bmc_cfg *cfg, struct cgn_err *err);
/* Start to read; copies |cfg|. Fails as redfish_bmc_check does. */
CGN_RC redfish_bmc_open(struct cgn_loop *l, const struct redfish_bmc_cfg *cfg, struct redfish_bmc **out,
	struct cgn_err *err);
/* End the session at the BMC, waiting at most 2 s, and free everything; then call |done|, which may be NULL, never
 * inline. NULL-safe: |done| is not called then. */
void redfish_bmc_close(struct redfish_bmc **take, void (*done)(void *arg), void *arg);

struct redfish_bmc_view {
	const struct power_reading *reading; /* Borrowed until the next turn of the loop */
	size_t n;
	bool is_up; /* The last round was whole */
	const char *
		why; /* Not up: the reason; "": no round has ended yet. Up: a document that could not be read */
	const char *auth; /* "none", "session", "basic" */
	cgn_nsec last;    /* When the last whole round ended; 0: never */
	uint64_t rounds, failures, logins, requests;
};
struct redfish_bmc_view redfish_bmc_view(const struct redfish_bmc *b);
