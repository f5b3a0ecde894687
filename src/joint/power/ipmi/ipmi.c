/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/power/ipmi/ipmi.h"

#include <stdlib.h>
#include <string.h>

#include "io/os/loop/backoff.h"
#include "io/os/proc/proc.h"
#include "policy/power/ipmi/ipmi.h"

#define IPMI_BMC_TAG 0x1b41b3c1U
#define RUN_GRACE    (500 * CGN_MSEC)
#define FAIL_LAST    (300 * CGN_SEC)
#define LOOK_AGAIN   240
#define ARGS_MOST    24

enum ipmi_step { IPMI_STEP_DCMI, IPMI_STEP_SENSORS };

struct ipmi_bmc {
	uint32_t tag;
	struct cgn_loop *loop;
	char *program, *host, *user, *password_file, *node;
	char port[8];
	cgn_nsec interval, timeout, round_since;
	struct cgn_timer timer, limit;
	struct cgn_backoff backoff;
	struct proc *proc; /* NULL: none runs */
	enum ipmi_step step;
	bool is_late, is_refused, has_no_dcmi; /* is_refused: a command, by the BMC */
	char said[200];                        /* The first line that the program wrote to stderr */
	struct ipmi_dcmi dcmi;
	struct power_reading reading[IPMI_MAX_READINGS], fresh[IPMI_MAX_READINGS];
	size_t n_reading, n_fresh;
	struct ipmi_bmc_view seen; /* Counters and states */
	char why[300];
	struct cgn_grave grave;
};

static void step_begin(struct ipmi_bmc *b);

/* ---- rounds ---- */

/* Some BMCs have several sensors of one name: the second is called "Temp#2". */
static void name_make(const struct ipmi_bmc *b, struct power_reading *r)
{
	char name[POWER_NAME_BYTES];
	unsigned same = 1;
	memcpy(name, r->part, sizeof name);
	for (size_t i = 0; i < b->n_fresh;) {
		bool is_same = power_same(&b->fresh[i], r);
		if (is_same)
			(void)snprintf(r->part, sizeof r->part, "%.50s#%u", name, ++same);
		i = is_same ? 0 : i + 1; /* Compare the new name with all */
	}
}

static void reading_add(struct ipmi_bmc *b, const struct power_reading *r)
{
	if (b->n_fresh == IPMI_MAX_READINGS)
		return;
	struct power_reading *to = &b->fresh[b->n_fresh];
	*to = *r;
	to->time = cgn_loop_now(b->loop);
	(void)cgn_str_copyz(to->node, sizeof to->node, cgn_str_of(b->node));
	name_make(b, to);
	b->n_fresh++;
}

/* |why| "": the round was whole. */
static void round_end(struct ipmi_bmc *b, const char *why)
{
	cgn_nsec now = cgn_loop_now(b->loop), wait = b->interval;
	(void)cgn_str_copyz(b->why, sizeof b->why, cgn_str_of(why));
	b->seen.is_up = why[0] == '\0';
	if (b->seen.is_up) {
		/* A slow BMC's readings are older by the time it takes to read them. */
		for (size_t i = 0; i < b->n_fresh; i++)
			b->fresh[i].max_age = 3 * b->interval + 2 * cgn_since(now, b->round_since);
		memcpy(b->reading, b->fresh, b->n_fresh * sizeof b->fresh[0]);
		b->n_reading = b->n_fresh;
		b->seen.last = now;
		cgn_backoff_reset(&b->backoff);
	} else {
		b->seen.failures++;
		b->backoff.first = b->interval;
		b->backoff.last = FAIL_LAST;
		wait = cgn_backoff_next(&b->backoff);
	}
	cgn_timer_set(&b->timer, wait);
}

static void dcmi_end(struct ipmi_bmc *b)
{
	struct power_reading r;
	ipmi_dcmi_reading(&b->dcmi, &r);
	b->has_no_dcmi = r.state == POWER_ABSENT;
	if (!b->has_no_dcmi)
		reading_add(b, &r);
	b->step = IPMI_STEP_SENSORS;
	step_begin(b);
}

/* A session that cannot be opened is a failure; a command that the BMC does not have is none. */
static bool is_command_missing(const struct ipmi_bmc *b)
{
	return b->step == IPMI_STEP_DCMI && b->is_refused;
}

/* ---- the program ---- */

/* The first line is the cause, and what follows it the consequence. */
static void stderr_note(struct ipmi_bmc *b, struct cgn_str line)
{
	b->is_refused = b->is_refused || memmem(line.p, line.n, "request failed", 14) != NULL;
	/* A warning: older BMCs do not list their cipher suites, and get the default one. */
	if (cgn_str_starts(line, "Unable to Get Channel Cipher Suites") || b->said[0] != '\0' ||
		!cgn_utf8_valid(line.p, line.n))
		return;
	(void)cgn_str_copyz(b->said, sizeof b->said, line);
}

static void on_line(void *user, bool is_stderr, struct cgn_str line, unsigned long dropped)
{
	struct ipmi_bmc *b = user;
	struct power_reading r;
	(void)dropped;
	CGN_LIVE(b, IPMI_BMC_TAG);
	if (is_stderr) {
		stderr_note(b, cgn_str_trim(line));
	} else if (b->step == IPMI_STEP_DCMI) {
		ipmi_dcmi_line(&b->dcmi, line);
	} else if (ipmi_read_sensor(line, &r)) {
		reading_add(b, &r);
	}
}

static void on_exit_of_program(void *user, const struct proc_exit *why)
{
	struct ipmi_bmc *b = user;
	char text[300], end[64];
	CGN_LIVE(b, IPMI_BMC_TAG);
	cgn_timer_cancel(&b->limit);
	b->proc = NULL;
	if (b->is_late) {
		(void)snprintf(text, sizeof text, "%.100s did not end within %g s", b->program,
			(double)b->timeout * 2 / (double)CGN_SEC);
		round_end(b, text);
	} else if (why->exec_errno == 0 && (why->code == 0 || is_command_missing(b))) {
		if (b->step == IPMI_STEP_DCMI)
			dcmi_end(b);
		else
			round_end(b, "");
	} else if (b->said[0] != '\0') {
		round_end(b, b->said);
	} else {
		(void)snprintf(text, sizeof text, "%.100s: %s", b->program,
			proc_exit_text(why, end, sizeof end));
		round_end(b, text);
	}
}

static void on_run_limit(struct cgn_timer *t)
{
	struct ipmi_bmc *b = CGN_CONTAINER(t, struct ipmi_bmc, limit);
	CGN_LIVE(b, IPMI_BMC_TAG);
	b->is_late = true;
	proc_stop(b->proc);
}

static size_t put_address(const struct ipmi_bmc *b, const char **args, size_t n)
{
	args[n++] = "-I";
	args[n++] = b->host != NULL ? "lanplus" : "open";
	if (b->host == NULL)
		return n;
	args[n++] = "-H";
	args[n++] = b->host;
	args[n++] = "-p";
	args[n++] = b->port;
	args[n++] = "-N"; /* Two seconds for an answer, and two more tries */
	args[n++] = "2";
	args[n++] = "-R";
	args[n++] = "2";
	if (b->user != NULL) {
		args[n++] = "-U";
		args[n++] = b->user;
	}
	if (b->password_file != NULL) {
		args[n++] = "-f";
		args[n++] = b->password_file;
	}
	return n;
}

static void step_begin(struct ipmi_bmc *b)
{
	static const struct proc_ops ops = {.on_line = on_line, .on_exit = on_exit_of_program};
	static const char *const env[] = {"LC_ALL=C", NULL};
	static const char *const dcmi[] = {"dcmi", "power", "reading", NULL};
	static const char *const sensors[] = {"-c", "sdr", "list", "full", NULL};
	const char *args[ARGS_MOST] = {b->program};
	struct cgn_err err = {0};
	size_t n = put_address(b, args, 1);
	for (const char *const *w = b->step == IPMI_STEP_DCMI ? dcmi : sensors; *w != NULL; w++)
		args[n++] = *w;
	const struct proc_cfg cfg = {.argv = args, .env = env, .grace = RUN_GRACE};
	b->said[0] = '\0';
	b->is_late = b->is_refused = false;
	cgn_rc rc = proc_spawn(b->loop, &cfg, &ops, b, &b->proc, &err);
	if (!cgn_ok(rc)) {
		round_end(b, err.msg);
		return;
	}
	cgn_timer_set(&b->limit, 2 * b->timeout);
}

static void on_round_timer(struct cgn_timer *t)
{
	struct ipmi_bmc *b = CGN_CONTAINER(t, struct ipmi_bmc, timer);
	CGN_LIVE(b, IPMI_BMC_TAG);
	bool asks_dcmi = !b->has_no_dcmi || b->seen.rounds % LOOK_AGAIN == 0;
	b->seen.rounds++;
	b->n_fresh = 0;
	b->dcmi = (struct ipmi_dcmi){.has_watts = false};
	b->round_since = cgn_loop_now(b->loop);
	b->step = asks_dcmi ? IPMI_STEP_DCMI : IPMI_STEP_SENSORS;
	step_begin(b);
}

/* ---- open and close ---- */

static void bmc_release(struct cgn_grave *g)
{
	struct ipmi_bmc *b = CGN_CONTAINER(g, struct ipmi_bmc, grave);
	free(b->program);
	free(b->host);
	free(b->user);
	free(b->password_file);
	free(b->node);
	b->tag = 0;
	free(b);
}

struct ipmi_bmc *ipmi_bmc_open(struct cgn_loop *l, const struct ipmi_bmc_cfg *cfg)
{
	struct ipmi_bmc *b = CGN_NEW(struct ipmi_bmc);
	b->tag = IPMI_BMC_TAG;
	b->loop = l;
	b->interval = cfg->interval;
	b->timeout = cfg->timeout;
	(void)snprintf(b->port, sizeof b->port, "%u", cfg->port != 0 ? cfg->port % 65536 : 623U);
	cgn_timer_init(&b->timer, l, on_round_timer);
	cgn_timer_init(&b->limit, l, on_run_limit);
	b->program = cgn_str_dup_maybe(cfg->program);
	b->host = cgn_str_dup_maybe(cfg->host);
	b->user = cgn_str_dup_maybe(cfg->user);
	b->password_file = cgn_str_dup_maybe(cfg->password_file);
	b->node = cgn_str_dup_maybe(cfg->node);
	cgn_timer_set(&b->timer, cfg->delay);
	return b;
}

void ipmi_bmc_close(struct ipmi_bmc **take)
{
	struct ipmi_bmc *b = CGN_TAKE_LIVE(take, IPMI_BMC_TAG);
	if (b == NULL)
		return;
	cgn_timer_cancel(&b->timer);
	cgn_timer_cancel(&b->limit);
	proc_free(&b->proc);
	cgn_loop_bury(b->loop, &b->grave, bmc_release);
}

struct ipmi_bmc_view ipmi_bmc_view(const struct ipmi_bmc *b)
{
	struct ipmi_bmc_view v = b->seen;
	CGN_LIVE(b, IPMI_BMC_TAG);
	v.reading = b->reading;
	v.n = b->n_reading;
	v.why = b->why;
	return v;
}
