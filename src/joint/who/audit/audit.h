/* SPDX-License-Identifier: Apache-2.0 */
/* audit: the audit log of a program: who changed what, and who was refused. Two files of chained JSON lines (policy/who/audit),
 * in which no line can be changed or removed unseen: changes are in security.audit_file, refusals in the file of that name with
 * AUDIT_REFUSED_END, so that no refusal ever pushes a change out. Neither has prompts, keys or tokens.
 *
 * A thread of each file writes the lines, each batch to the device (io/os/linefile). Refusals cost an attacker nothing. Of
 * callers without a credential the first refusal of a source in a second is written, for each reason, and one line counts its
 * others; AUDIT_SOURCES of these have lines of their own. Of other callers the first AUDIT_REFUSALS of a second are written. One line counts
 * the rest. Changes are all written. Lines that the disk does not take are counted, in a line as soon as it takes one again, and
 * in cgn_audit_lost_total. */
#pragma once
#include "base/core/err.h"
#include "base/core/str.h"
#include "io/os/loop/loop.h"
#include "joint/report/telemetry/telemetry.h"
#include "policy/config/config.h"

#define AUDIT_REFUSALS    100U
#define AUDIT_SOURCES     32U        /* Addresses; of IPv6 groups of 2^64. */
#define AUDIT_REFUSED_END ".refused" /* Behind the name of the file of changes. */

struct audit;

enum audit_decision {
	AUDIT_ALLOWED,
	AUDIT_REFUSED,
	AUDIT_FAILED
}; /* FAILED: allowed, but it was not done. */

struct audit_event {
	const char *action; /* "admin.request" */
	enum audit_decision decision;
	struct cgn_str kind, name, tenant; /* The principal; empty: unknown. */
	struct cgn_str from;               /* Address, or "signal" */
	struct cgn_str object;             /* The thing that the action is about. */
	struct cgn_str why;                /* The reason of a refusal or failure. */
	struct cgn_str request;            /* Id of the request. */
	bool own_line; /* A refusal that is not summed though it has no principal: its reason is another program's. */
};

/* Open the files that security.audit_file names and go on with their chains; NULL without a name. CGN_INVALID:
 * a file is not an audit log; CGN_CONFLICT: another process writes it. Call on the thread of |l|, before
 * others use the result. */
CGN_RC audit_open(struct cgn_loop *l, struct telemetry *t, const struct config *cfg, struct audit **out,
	struct cgn_err *err);
/* Note the event. Any thread; does nothing for NULL. */
void audit_note(struct audit *a, const struct audit_event *e);
/* Use the files of those names for all later lines, after a rotation by another program. The loop's thread. */
CGN_RC audit_reopen(struct audit *a, struct cgn_err *err);
/* Write the waiting lines and close. The loop's thread, when no other one uses it. */
void audit_close(struct audit **take);
