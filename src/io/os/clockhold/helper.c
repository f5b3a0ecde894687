/* SPDX-License-Identifier: Apache-2.0 */
/* The helper process: takes orders on descriptor 0 until the other end closes, then lifts all limits. It may wait for the
 * library as long as it likes. */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/core/str.h"
#include "base/log/log.h"
#include "io/os/clockhold/clockhold_priv.h"

#define FD_CALLER   0
#define END_TRIES   3
#define END_PAUSE   (200 * CGN_MSEC)
#define END_SECONDS 10 /* A library that hangs at the end is given up; the file still has the limit. */

struct helper {
	struct record record;
	struct nvml_clocks *clocks;  /* NULL: not open */
	bool trusted[NVML_MAX_GPUS]; /* By index: this helper has lifted or set a limit there */
};

static void word_send(const struct clockhold_word *w)
{
	(void)!send(FD_CALLER, w, sizeof *w, MSG_NOSIGNAL);
}

static void trouble_tell(cgn_rc rc, const struct cgn_err *err)
{
	struct clockhold_word w = {.kind = CLOCKHOLD_TROUBLE, .code = (uint32_t)rc.code};
	(void)cgn_str_copyz(w.why, sizeof w.why, cgn_str_of(err->msg));
	word_send(&w);
}

static void on_record_waiting(void *user)
{
	const struct clockhold_word w = {.kind = CLOCKHOLD_WAITING};
	(void)user;
	word_send(&w);
}

/* ---- rights and signals ---- */

/* A service manager ends all processes of its unit with the caller; this one has work to do then. */
static void signals_ignore(void)
{
	const int those[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR2};
	for (size_t i = 0; i < CGN_COUNT(those); i++)
		(void)signal(those[i], SIG_IGN);
}

/* Keep the right to set clocks and no other one. Without that right nothing changes. */
static void rights_drop(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};
	const uint32_t admin = 1U << CAP_SYS_ADMIN;
	if (syscall(SYS_capget, &head, data) != 0)
		return;
	for (size_t i = 0; i < CGN_COUNT(data); i++) {
		const uint32_t keep = i == 0 ? admin : 0;
		data[i].effective &= keep;
		data[i].permitted &= keep;
		data[i].inheritable = 0;
	}
	(void)syscall(SYS_capset, &head, data);
	(void)prctl(PR_SET_NO_NEW_PRIVS, 1UL, 0UL, 0UL, 0UL);
}

/* The caller has died. A call of the library that never returns would keep the helper, and the lock on the file with it. */
static void on_caller_death(int signo)
{
	(void)signo;
	(void)alarm(END_SECONDS);
}

static void process_settle(void)
{
	struct sigaction death = {.sa_handler = on_caller_death};
	signals_ignore();
	(void)signal(SIGALRM, SIG_DFL);
	(void)sigaction(SIGUSR1, &death, NULL);
	(void)prctl(PR_SET_PDEATHSIG, (unsigned long)SIGUSR1);
	(void)syscall(SYS_close_range, 3U, ~0U, 0U);
	(void)prctl(PR_SET_NAME, "cgn-clocks");
	(void)umask(027);
}

/* ---- limits ---- */

/* Lift the limit of a GPU of the record. */
static cgn_rc limit_lift(struct helper *h, const char *uuid, struct cgn_err *err)
{
	struct nvml_clock_gpu gpu;
	if (!nvml_clocks_find(h->clocks, uuid, &gpu))
		return CGN_FAIL(err, NOT_FOUND, "GPU %s is not there, or cannot be read now", uuid);
	CGN_TRY(nvml_clocks_reset(h->clocks, &gpu, err));
	if (gpu.index < NVML_MAX_GPUS)
		h->trusted[gpu.index] = true;
	record_remove(&h->record, uuid);
	return CGN_OK;
}

/* Lift all limits of the record. Returns how many are left. */
static size_t limits_lift(struct helper *h, struct cgn_err *err)
{
	for (size_t i = h->record.n; i-- > 0;) {
		char uuid[sizeof h->record.uuid[0]];
		memcpy(uuid, h->record.uuid[i], sizeof uuid);
		(void)!cgn_ok(limit_lift(h, uuid, err));
	}
	return h->record.n;
}

static cgn_rc limit_set(struct helper *h, const struct clockhold_order *o, struct cgn_err *err)
{
	struct nvml_clock_gpu gpu;
	if (!nvml_clocks_find(h->clocks, o->uuid, &gpu) || gpu.index >= NVML_MAX_GPUS)
		return CGN_FAIL(err, NOT_FOUND, "GPU %s is not there, or cannot be read now", o->uuid);
	if (gpu.limited && !h->trusted[gpu.index] && o->take_over == 0)
		return CGN_FAIL(err, CONFLICT,
			"the driver says that a setting keeps the clocks of GPU %u low already, and it is not ours; lift it "
			"(nvidia-smi -rgc, nvidia-smi -rac), or set agent.clocks.take_over",
			gpu.index);
	bool was_noted = record_has(&h->record, o->uuid);
	CGN_TRY(record_add(&h->record, o->uuid, err));
	cgn_rc rc = nvml_clocks_lock(h->clocks, &gpu, o->low_mhz, o->high_mhz, err);
	if (cgn_ok(rc))
		h->trusted[gpu.index] = true;
	else if (!was_noted && rc.code == CGN_FORBIDDEN)
		record_remove(&h->record, o->uuid); /* Nothing was set. */
	else if (!was_noted)
		(void)!cgn_ok(limit_lift(h, o->uuid, NULL)); /* Something may have been set. */
	return rc;
}

static void order_do(struct helper *h, const struct clockhold_order *o)
{
	struct clockhold_word w = {.kind = CLOCKHOLD_DONE};
	struct cgn_err err = {0};
	cgn_rc rc = CGN_OK;
	if (o->kind == CLOCKHOLD_LOCK) {
		rc = limit_set(h, o, &err);
		w.high_mhz = o->high_mhz;
	} else if (record_has(&h->record, o->uuid)) {
		rc = limit_lift(h, o->uuid, &err);
	}
	w.code = (uint32_t)rc.code;
	(void)cgn_str_copyz(w.why, sizeof w.why, cgn_str_of(err.msg));
	memcpy(w.gpu.uuid, o->uuid, sizeof w.gpu.uuid);
	word_send(&w);
}

/* ---- life ---- */

static void orders_serve(struct helper *h)
{
	struct clockhold_order o;
	ssize_t n;
	while ((n = recv(FD_CALLER, &o, sizeof o, 0)) != 0) {
		if (n < 0 && errno == EINTR)
			continue;
		if (n != (ssize_t)sizeof o)
			return;
		o.uuid[sizeof o.uuid - 1] = '\0';
		order_do(h, &o);
	}
}

/* The caller has ended, or wants all limits lifted. Returns the exit status. */
static int helper_end(struct helper *h)
{
	struct cgn_err err = {0};
	size_t held = h->record.n;
	(void)alarm(END_SECONDS);
	for (unsigned i = 0; i < END_TRIES && limits_lift(h, &err) > 0; i++)
		(void)nanosleep(&(struct timespec){.tv_nsec = (long)END_PAUSE}, NULL);
	if (h->record.n > 0)
		cgn_log(ERROR, "agent.clocks_stay", F_U64("gpus", h->record.n), F_STR("why", err.msg),
			F_STR("then", "the next start of the agent tries again; by hand: nvidia-smi -rgc"));
	else if (held > 0)
		cgn_log(INFO, "agent.clocks_lifted", F_U64("gpus", held),
			F_STR("why", "the agent ended, or clocks are no longer limited"));
	return h->record.n > 0 ? 1 : 0;
}

static void gpus_tell(struct helper *h, const char *list)
{
	struct nvml_clock_gpu *gpu = CGN_NEW_ARRAY(struct nvml_clock_gpu, NVML_MAX_GPUS);
	size_t n = nvml_clocks_gpus(h->clocks, list, gpu, NVML_MAX_GPUS);
	for (size_t i = 0; i < n; i++) {
		const struct clockhold_word w = {.kind = CLOCKHOLD_GPU, .gpu = gpu[i]};
		word_send(&w);
	}
	free(gpu);
}

static cgn_rc helper_open(struct helper *h, const char *library, const char *record, struct cgn_err *err)
{
	CGN_TRY(record_open(&h->record, record, on_record_waiting, NULL, err));
	CGN_TRY(nvml_clocks_open(library, &h->clocks, err));
	(void)!chdir("/"); /* Paths may be relative, so not before. */
	rights_drop();
	return CGN_OK;
}

static int helper_run(struct helper *h, const char *list)
{
	struct cgn_err err = {0};
	struct clockhold_word w = {.kind = CLOCKHOLD_READY, .lifted = (uint32_t)h->record.n};
	w.failed = (uint32_t)limits_lift(h, &err);
	w.lifted -= w.failed;
	(void)cgn_str_copyz(w.why, sizeof w.why, cgn_str_of(err.msg));
	gpus_tell(h, list);
	word_send(&w);
	orders_serve(h);
	return helper_end(h);
}

int clockhold_main(int argc, char **argv)
{
	struct helper h = {.clocks = NULL};
	struct cgn_err err = {0};
	if (argc != 6)
		return cgn_code_exit(CGN_INVALID);
	const char *library = argv[2], *gpus = argv[3][0] == '=' ? argv[3] + 1 : NULL, *format = argv[5];
	process_settle();
	bool human =
		strcmp(format, "human") == 0 || (strcmp(format, "auto") == 0 && isatty(STDERR_FILENO) == 1);
	log_setup("cgn-agent", LOG_INFO, human ? LOG_HUMAN : LOG_JSON);
	cgn_rc rc = helper_open(&h, library, argv[4], &err);
	if (!cgn_ok(rc))
		trouble_tell(rc, &err);
	int status = cgn_ok(rc) ? helper_run(&h, gpus) : cgn_code_exit(rc.code);
	nvml_clocks_close(&h.clocks);
	if (h.record.fd >= 0)
		(void)close(h.record.fd);
	return status;
}
