/* SPDX-License-Identifier: Apache-2.0 */
/* powerfetch: the readings of one Prometheus text, again and again: of NVIDIA's DCGM exporter, or of a cgn-agent. A round is
 * one GET; redirects are not followed. A round that fails leaves the readings of the last one, which become stale; the
 * next round waits longer, up to 5 minutes. Readings are fresh for three intervals and twice the time of the round.
 *
 * Bounds of a text: 4 MiB, 512 readings, the timeout in all. Memory: 4 KiB and 300 bytes a reading, and the text during a round. One loop,
 * its thread; never waits. */
#pragma once
#include "io/os/loop/loop.h"
#include "policy/power/power/power.h"

#define POWERFETCH_MAX_READINGS 512
#define POWERFETCH_MAX_TEXT     ((size_t)4 << 20)

struct powerfetch;
struct powerfetch_cfg {
	const char *url;         /* http[s]://HOST[:PORT][/PATH]; without a path: /metrics */
	const char *node;        /* The cluster's id of the machine; readings of another node are left out */
	const char *ca_file;     /* NULL: the system's authorities */
	const char *fingerprint; /* As tls_cfg.pin; NULL: authorities judge */
	cgn_nsec timeout;        /* From the begin to the end of a round */
	cgn_nsec interval;       /* From the end of a round to the begin of the next */
	cgn_nsec delay;          /* Before the first round */
};
/* Check the settings that need no network. The message names the error. */
CGN_RC powerfetch_check(const struct powerfetch_cfg *cfg, struct cgn_err *err);
/* Start to read; copies |cfg|. Fails as powerfetch_check does, and for files that cannot be read. */
CGN_RC powerfetch_open(struct cgn_loop *l, const struct powerfetch_cfg *cfg, struct powerfetch **out,
	struct cgn_err *err);
void powerfetch_close(struct powerfetch **take); /* NULL-safe. */

struct powerfetch_view {
	const struct power_reading *reading; /* Borrowed until the next turn of the loop */
	size_t n;
	bool is_up; /* The last round was whole */
	/* Not up: the reason; "": no round has ended yet. Up: the parts that were left out */
	const char *why;
	cgn_nsec last; /* When the last whole round ended; 0: never */
};
struct powerfetch_view powerfetch_view(const struct powerfetch *f);
