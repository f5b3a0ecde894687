/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: looks for the usual mistakes of an installation and says what to do. checks.def has one row for each check.
 * First the facts are gathered, and all network questions are asked at once; then each check reads the facts. Nothing
 * is changed. One thread. */
#pragma once
#include <limits.h>

#include "base/core/arena.h"
#include "ctl/ctl.h"
#include "ctl/doctor/probe.h"
#include "policy/config/config.h"

#define DOCTOR_MAX_FINDINGS 512 /* Further findings are counted and not kept. */
#define DOCTOR_PKI          "/etc/cognitora/pki"

enum doctor_result { DOCTOR_OK, DOCTOR_SKIPPED, DOCTOR_WARNING, DOCTOR_PROBLEM };

struct doctor;
struct doctor_check {
	const char *name;
	void (*run)(struct doctor *d);
	bool any; /* Works without settings. */
	const char *summary;
};

/* Texts live in the arena of struct doctor. */
struct doctor_finding {
	const struct doctor_check *check;
	enum doctor_result result;
	const char *seen;
	const char *todo; /* NULL: nothing. */
};

enum doctor_program_index { ROUTER, AGENT, KVCACHED, METRICS, DOCTOR_PROGRAMS };

/* A program of this machine. */
struct doctor_program {
	const char *name;  /* "cgn-router" */
	const char *admin; /* Address of the admin port; NULL: unknown. */
	bool meant; /* Belongs to this machine: --program, its unit is enabled, it answers, or the file has settings. */
	bool certain; /* The same without the guess by the file: when it does not run, that is a problem. */
	bool answers; /* The admin port answers in the name of the program. */
	char binary[PATH_MAX];                          /* "": not found. */
	struct probe *version, *ready, *config, *extra; /* NULL: not asked. */
	/* As systemd has its unit; "": unknown. */
	char load[24], file_state[24], active[24], why[32];
};

struct doctor {
	const struct ctl_args *args;
	struct cgn_arena arena;
	const char *path;   /* Configuration file; NULL: none. */
	struct config *cfg; /* NULL: it cannot be used. */
	struct cgn_err trouble;
	struct doctor_program programs[DOCTOR_PROGRAMS];
	bool units; /* systemd answered. */
	struct probes probes;
	struct probe *engines[64], *etcd[16], *members[16], *routers[64], *router;
	const struct doctor_check *now;
	struct doctor_finding findings[DOCTOR_MAX_FINDINGS];
	size_t n, lost;
};

/* facts.c: find and read the settings, then the programs of this machine. Never fails: a missing file or
 * program is a finding. */
CGN_RC doctor_gather(struct doctor *d, struct cgn_err *err);
/* Set the configuration and the programs that --config, --program and systemd name. */
void doctor_read_settings(struct doctor *d);

/* Note a finding of the running check. */
void doctor_find(struct doctor *d, enum doctor_result result, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Add the remedy of the last finding: one command or key. */
void doctor_do(struct doctor *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* True when the running check has found nothing to complain about yet. */
bool doctor_is_fine(const struct doctor *d);

/* command.c: ask systemd for the properties |what| of |units|. False: it does not answer. */
bool doctor_systemctl(struct doctor *d, const char *const *units, size_t n, const char *what,
	struct cgn_buf *out);

/* Is the file's first line the number? False: it cannot be read. */
bool doctor_number(const char *path, uint64_t *out);

#define CHECK(name, run, any, summary) void run(struct doctor *d);
#include "ctl/doctor/checks.def"
#undef CHECK
