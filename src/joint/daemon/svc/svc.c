/* SPDX-License-Identifier: Apache-2.0 */
/* svc: the life of a daemon, from its command line to its exit status. */
#include "joint/daemon/svc/svc.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <sys/resource.h>
#include <sys/stat.h>

#include "base/log/log.h"
#include "io/net/net/inherit.h"
#include "io/net/net/name.h"
#include "joint/daemon/svc/svc_priv.h"
#include "joint/report/telemetry/telemetry.h"

#define SVC_TAG 0x57c0f2a3U

enum svc_phase {
#define PHASE(id, exits, why) SVC_##id,
#include "joint/daemon/svc/phases.def"
#undef PHASE
};

static const unsigned phase_exits[] = {
#define TO(id)                1U << SVC_##id
#define PHASE(id, exits, why) [SVC_##id] = (exits),
#include "joint/daemon/svc/phases.def"
#undef PHASE
#undef TO
};

struct svc {
	uint32_t tag;
	const struct svc_program *program;
	const struct svc_args *args;
	struct cgn_loop *loop;
	struct tracing *tracing; /* NULL: off. */
	struct telemetry *telemetry;
	struct audit *audit; /* NULL: off. */
	struct access *access;
	struct login *login;       /* NULL: there is no admin port. */
	struct oidc *oidc;         /* NULL: auth.oidc_issuer has never been set. */
	struct tls_ctx *admin_tls; /* NULL: the admin port is in clear. */
	/* The configuration at the start: keys that are not live keep these values until a restart. */
	struct config *boot;
	struct config *cfg; /* The configuration that was loaded last; may be |boot|. */
	struct svc_admin *admin;
	void *state; /* The program's state. */
	enum svc_phase phase;
	struct svc_notify notify;
	struct cgn_timer watchdog, drain;
	struct svc_certs certs;
	struct svc_crl crl;
	struct svc_follow follow;
	struct svc_memory memory;
	struct svc_shortage shortage;
	struct {
		unsigned held; /* Parts of the reload that are not done; reload() itself is one. */
		struct svc_problems refused;
		struct cgn_buf waits; /* Keys that need a restart. */
	} reload;
	bool start_ended; /* A signal ended the program's start. */
	struct sigaction
		before_long[2]; /* The loop's handlers of SIGTERM and SIGINT, during svc_long_begin. */
	int exit_code;
	char machine[256]; /* Name of this machine; empty: unknown. */
};

/* Only this function writes the phase. */
static void svc_move(struct svc *s, enum svc_phase to)
{
	CGN_MUST(phase_exits[s->phase] & 1U << to);
	s->phase = to;
}

static int error_print(const struct svc_program *p, const struct cgn_err *err)
{
	fprintf(stderr, "%s: %s\n", p->name, err->msg);
	return cgn_code_exit(err->code);
}

static int print_and_free(struct cgn_buf *text)
{
	bool whole = !text->bad && fwrite(text->p, 1, text->n, stdout) == text->n && fflush(stdout) == 0;
	cgn_buf_fini(text);
	return whole ? 0 : 1;
}

/* Is stderr the journal's socket? $JOURNAL_STREAM has its device and inode, as systemd.exec(5) says. */
static bool stderr_is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	struct stat st;
	char is[64];
	if (stream == NULL || fstat(STDERR_FILENO, &st) != 0)
		return false;
	(void)snprintf(is, sizeof is, "%llu:%llu", (unsigned long long)st.st_dev,
		(unsigned long long)st.st_ino);
	return strcmp(stream, is) == 0;
}

static void logs_follow(const struct svc_program *p, const struct config *cfg)
{
	static const enum log_level levels[] = {[CONFIG_LOG_DEBUG - CONFIG_LOG_DEBUG] = LOG_DEBUG,
		[CONFIG_LOG_INFO - CONFIG_LOG_DEBUG] = LOG_INFO,
		[CONFIG_LOG_WARN - CONFIG_LOG_DEBUG] = LOG_WARN,
		[CONFIG_LOG_ERROR - CONFIG_LOG_DEBUG] = LOG_ERROR};
	bool human = cfg->log.format == CONFIG_FORMAT_HUMAN ||
		(cfg->log.format == CONFIG_FORMAT_AUTO && isatty(STDERR_FILENO) == 1);
	log_setup(p->name, levels[cfg->log.level - CONFIG_LOG_DEBUG], human ? LOG_HUMAN : LOG_JSON);
}

/* Note an action on the program as a whole, such as its start or a reload. */
static void life_note(struct svc *s, const char *action, const char *from, const char *why)
{
	audit_note(s->audit,
		&(struct audit_event){.action = action,
			.decision = why != NULL ? AUDIT_FAILED : AUDIT_ALLOWED,
			.kind = CGN_STR("process"),
			.from = cgn_str_of(from),
			.object = cgn_str_of(s->program->name),
			.why = why != NULL ? cgn_str_of(why) : (struct cgn_str){0}});
}

/* ---- signals ---- */

static void drain_timed_out(struct cgn_timer *t)
{
	struct svc *s = CGN_CONTAINER(t, struct svc, drain);
	cgn_log(WARN, "svc.drain_timeout", F_STR("then", "open work is cut"));
	cgn_loop_stop(s->loop);
}

static void drain_begin(struct svc *s, int signo)
{
	svc_move(s, SVC_DRAINING);
	cgn_nsec limit = s->program->drain_timeout != NULL ? s->program->drain_timeout(s->cfg) : 0;
	cgn_log(INFO, "svc.drain", F_STR("signal", sigabbrev_np(signo)), F_DUR("limit", limit));
	svc_notify_send(&s->notify, "STOPPING=1");
	life_note(s, "program.stop", sigabbrev_np(signo), NULL);
	tracing_flush(s->tracing);
	if (s->program->drain == NULL) {
		cgn_loop_stop(s->loop);
		return;
	}
	cgn_timer_set(&s->drain, limit);
	s->program->drain(s->state);
}

/* Return how long the drain may still take. */
static cgn_nsec drain_left(const struct svc *s)
{
	cgn_nsec now = cgn_loop_now(s->loop);
	return s->drain.at > now ? s->drain.at - now : 0;
}

static void on_stop_signal(void *arg, int signo)
{
	struct svc *s = arg;
	CGN_LIVE(s, SVC_TAG);
	if (s->phase != SVC_DRAINING) {
		drain_begin(s, signo);
		return;
	}
	/* Service managers and timeout(1) may send SIGTERM more than once, which never means that work is to be cut. */
	if (signo == SIGTERM) {
		cgn_log(INFO, "svc.drain_goes_on", F_STR("signal", "TERM"), F_DUR("left", drain_left(s)),
			F_STR("to_end_now", "SIGINT or SIGKILL"));
		return;
	}
	cgn_log(WARN, "svc.stop_now", F_STR("signal", sigabbrev_np(signo)));
	s->exit_code = 128 + signo;
	cgn_loop_stop(s->loop);
}

static void audit_follow_file(struct svc *s)
{
	struct cgn_err err;
	if (cgn_ok(audit_reopen(s->audit, &err)))
		return;
	cgn_log(ERROR, "audit.refused", F_STR("why", err.msg), F_STR("then", "the old file stays"));
	svc_reload_refused(s, err.msg);
}

static void crl_follow_file(struct svc *s)
{
	struct cgn_err err;
	if (!cgn_ok(svc_crl_reload(&s->crl, &err)))
		svc_reload_refused(s, err.msg);
}

static void access_follow(struct svc *s)
{
	struct cgn_err err;
	if (cgn_ok(access_reload(s->access, s->cfg, &err)))
		return;
	cgn_log(ERROR, "access.refused", F_STR("why", err.msg), F_STR("then", "the old roles stay"));
	svc_reload_refused(s, err.msg);
}

static CGN_RC provider_open(struct svc *s, struct cgn_err *err)
{
	if (s->cfg->auth.oidc_issuer == NULL)
		return CGN_OK;
	return s->oidc == NULL ? oidc_open(s->loop, s->telemetry, s->cfg, &s->oidc, err)
			       : oidc_reload(s->oidc, s->cfg, err);
}

static void provider_follow(struct svc *s)
{
	struct cgn_err err;
	if (cgn_ok(provider_open(s, &err)))
		return;
	cgn_log(ERROR, "oidc.refused", F_STR("why", err.msg), F_STR("then", "the old settings stay"));
	svc_reload_refused(s, err.msg);
}

/* Read the keys and the certificate of the admin port again. */
static void admin_follow(struct svc *s)
{
	struct cgn_err err;
	if (s->login != NULL && !cgn_ok(login_reload(s->login, s->cfg, svc_oidc(s), &err))) {
		cgn_log(ERROR, "login.refused", F_STR("why", err.msg), F_STR("then", "the old keys stay"));
		svc_reload_refused(s, err.msg);
	}
	if (s->admin_tls != NULL && !cgn_ok(tls_ctx_reload(s->admin_tls, &err))) {
		cgn_log(ERROR, "svc.admin_tls_refused", F_STR("why", err.msg),
			F_STR("then", "the old certificate stays"));
		svc_reload_refused(s, err.msg);
	}
}

static void config_take(struct svc *s, struct config **take)
{
	struct config *old = s->cfg;
	s->cfg = *take;
	*take = NULL;
	logs_follow(s->program, s->cfg);
	audit_follow_file(s);
	crl_follow_file(s);
	access_follow(s);
	provider_follow(s);
	admin_follow(s);
	if (s->program->reload != NULL)
		s->program->reload(s->state, s->cfg);
	svc_certs_again(&s->certs);
	if (old != s->boot)
		config_free(&old);
}

static void reload_end(struct svc *s)
{
	struct svc_problems *p = &s->reload.refused;
	life_note(s, "config.reload", "HUP", p->n > 0 ? cgn_buf_z(&p->text) : NULL);
	if (p->n == 0) {
		cgn_log(INFO, "svc.reloaded", F_STR("needs_restart", cgn_buf_z(&s->reload.waits)));
	} else {
		if (p->text.n > 0)
			p->text.n--; /* The last line end. */
		cgn_log(ERROR, "svc.reloaded_in_part", F_U64("refused", p->n),
			F_STR("why", cgn_buf_z(&p->text)),
			F_STR("needs_restart", cgn_buf_z(&s->reload.waits)),
			F_STR("then", "what was refused stays as it was"));
	}
	cgn_buf_fini(&p->text);
	cgn_buf_fini(&s->reload.waits);
	*p = (struct svc_problems){.n = 0};
	svc_notify_send(&s->notify, "READY=1");
}

void svc_reload_refused(struct svc *s, const char *why)
{
	struct cgn_err err;
	CGN_LIVE(s, SVC_TAG);
	if (s->reload.held > 0)
		svc_problem(&s->reload.refused, CGN_FAIL(&err, INVALID, "%s", why), &err);
}

void svc_reload_hold(struct svc *s)
{
	CGN_LIVE(s, SVC_TAG);
	s->reload.held++;
}

void svc_reload_release(struct svc *s)
{
	CGN_LIVE(s, SVC_TAG);
	CGN_MUST(s->reload.held > 0);
	if (--s->reload.held == 0)
		reload_end(s);
}

/* Load the configuration, and refuse roles and ports that the program would not start with. */
static CGN_RC config_load_checked(const struct svc_program *p, const struct svc_args *args,
	struct config **out, struct cgn_err *err)
{
	CGN_ON_EXIT(config_free) struct config *cfg = NULL;
	CGN_ON_EXIT(identity_roles_unref) struct identity_roles *roles = NULL;
	CGN_TRY(svc_config_load(args, &cfg, err));
	CGN_TRY(identity_roles_new(cfg, &roles, err));
	CGN_TRY(svc_ports_check(p, cfg, err));
	*out = CGN_TAKE(&cfg);
	return CGN_OK;
}

static void reload_begin(struct svc *s)
{
	if (s->phase != SVC_SERVING)
		return;
	svc_notify_reloading(&s->notify, cgn_clock_now());
	struct config *cfg = NULL;
	struct cgn_err err;
	if (!cgn_ok(config_load_checked(s->program, s->args, &cfg, &err))) {
		cgn_log(ERROR, "svc.reload_failed", F_STR("why", err.msg),
			F_STR("then", "the old configuration stays"));
		life_note(s, "config.reload", "HUP", err.msg);
		svc_notify_send(&s->notify, "READY=1");
		return;
	}
	svc_reload_hold(s);
	cgn_buf_fini(&s->reload.waits); /* An earlier reload may still be under way; they end as one. */
	s->reload.waits.limit = 16384;
	s->reload.refused.text.limit = 16384;
	config_needs_restart(s->boot, cfg, &s->reload.waits);
	config_take(s, &cfg);
	svc_reload_release(s);
}

static void on_reload_signal(void *arg, int signo)
{
	(void)signo;
	struct svc *s = arg;
	CGN_LIVE(s, SVC_TAG);
	reload_begin(s);
}

static void on_files_changed(void *user)
{
	struct svc *s = user;
	CGN_LIVE(s, SVC_TAG);
	cgn_log(INFO, "svc.certificate_files_changed", F_STR("then", "they are read again, as SIGHUP does"));
	reload_begin(s);
}

static void watchdog_fire(struct cgn_timer *t)
{
	struct svc *s = CGN_CONTAINER(t, struct svc, watchdog);
	svc_notify_send(&s->notify, "WATCHDOG=1");
	cgn_timer_set(t, s->notify.watchdog);
}

static cgn_rc signals_take(struct svc *s, struct cgn_err *err)
{
	struct sigaction ignore = {.sa_handler = SIG_IGN};
	/* A write beyond RLIMIT_FSIZE then fails with EFBIG. */
	if (sigaction(SIGPIPE, &ignore, NULL) != 0 || sigaction(SIGXFSZ, &ignore, NULL) != 0)
		return CGN_FAIL(err, INTERNAL, "cannot ignore SIGPIPE and SIGXFSZ");
	CGN_TRY(cgn_loop_signal(s->loop, SIGTERM, on_stop_signal, s, err));
	CGN_TRY(cgn_loop_signal(s->loop, SIGINT, on_stop_signal, s, err));
	return cgn_loop_signal(s->loop, SIGHUP, on_reload_signal, s, err);
}

/* From here, SIGINT ends the process by the system's default, and SIGTERM, which it obeys already, changes nothing. */
static void signals_give_back(void)
{
	struct sigaction plain = {.sa_handler = SIG_DFL}, ignore = {.sa_handler = SIG_IGN};
	(void)sigaction(SIGTERM, &ignore, NULL);
	(void)sigaction(SIGINT, &plain, NULL);
}

/* ---- a start that takes long ---- */

/* The signal that came during a long part of the start; 0: none. Any thread's handler writes it. */
static volatile sig_atomic_t long_signal;

static void long_on_signal(int signo)
{
	long_signal = signo;
}

/* The loop does not run during start, and its handlers would only keep the signal for later. */
void svc_long_begin(struct svc *s)
{
	struct sigaction note = {.sa_handler = long_on_signal, .sa_flags = SA_RESTART};
	CGN_LIVE(s, SVC_TAG);
	long_signal = 0;
	(void)sigaction(SIGTERM, &note, &s->before_long[0]);
	(void)sigaction(SIGINT, &note, &s->before_long[1]);
}

bool svc_long_goes_on(void *svc)
{
	struct svc *s = svc;
	CGN_LIVE(s, SVC_TAG);
	svc_notify_starting(&s->notify, cgn_clock_now());
	s->start_ended |= long_signal != 0;
	return !s->start_ended;
}

void svc_long_end(struct svc *s)
{
	CGN_LIVE(s, SVC_TAG);
	(void)sigaction(SIGTERM, &s->before_long[0], NULL);
	(void)sigaction(SIGINT, &s->before_long[1], NULL);
}

/* ---- questions of the admin port ---- */

static bool is_ready(void *arg, struct cgn_buf *why)
{
	struct svc *s = arg;
	if (s->phase == SVC_DRAINING) {
		cgn_buf_putz(why, "draining");
		return false;
	}
	return s->program->ready == NULL || s->program->ready(s->state, why);
}

static void get_configs(void *arg, const struct config **boot, const struct config **loaded)
{
	const struct svc *s = arg;
	*boot = s->boot;
	*loaded = s->cfg;
}

/* ---- life ---- */

static void files_raise(void)
{
	struct rlimit lim;
	if (getrlimit(RLIMIT_NOFILE, &lim) != 0 || lim.rlim_cur == lim.rlim_max)
		return;
	lim.rlim_cur = lim.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &lim) != 0)
		cgn_log(WARN, "svc.nofile",
			F_STR("why", "RLIMIT_NOFILE could not be raised to its hard limit"));
}

/* Use TLS where other machines reach the port: certificates of clients are asked for, and judged when they are shown. */
static CGN_RC admin_tls_open(struct svc *s, const char *addr, struct cgn_err *err)
{
	static const char *const alpn[] = {"h2", "http/1.1", NULL};
	const struct tls_cfg tls = {.server = true,
		.ca_file = s->cfg->security.ca_file,
		.cert_file = s->cfg->security.cert_file,
		.key_file = s->cfg->security.key_file,
		.crl_file = s->cfg->security.crl_file,
		.ask_peer_cert = s->cfg->security.ca_file != NULL,
		.alpn = alpn};
	if (identity_is_local(cgn_str_of(addr)) || tls.cert_file == NULL)
		return CGN_OK;
	return cgn_err_of(tls_ctx_new(&tls, &s->admin_tls, err), "the admin port", err);
}

static cgn_rc admin_open(struct svc *s, struct cgn_err *err)
{
	const char *addr = s->program->admin.addr != NULL ? s->program->admin.addr(s->cfg) : NULL;
	if (addr == NULL)
		return CGN_OK;
	(void)gethostname(s->machine, sizeof s->machine - 1);
	CGN_TRY(login_open(s->loop, s->cfg, s->access, svc_oidc(s), &s->login, err));
	CGN_TRY(admin_tls_open(s, addr, err));
	struct svc_admin_cfg cfg = {.program = s->program,
		.telemetry = s->telemetry,
		.svc = s,
		.ready = is_ready,
		.configs = get_configs,
		.state = &s->state,
		.audit = s->audit,
		.access = s->access,
		.login = s->login,
		.tls = s->admin_tls,
		.machine = s->machine};
	return svc_admin_open(s->loop, addr, &cfg, &s->admin, err);
}

static cgn_rc svc_start(struct svc *s, struct cgn_err *err)
{
	s->telemetry = telemetry_new(s->program->metrics, s->program->n_metrics);
	CGN_TRY(cgn_loop_new(&s->loop, err));
	cgn_timer_init(&s->watchdog, s->loop, watchdog_fire);
	cgn_timer_init(&s->drain, s->loop, drain_timed_out);
	svc_certs_init(&s->certs, s->loop);
	svc_memory_init(&s->memory, s->loop);
	svc_shortage_init(&s->shortage, s->loop, s->telemetry);
	svc_follow_open(&s->follow, s->loop, s->boot, on_files_changed, s);
	CGN_TRY(signals_take(s, err));
	CGN_TRY(audit_open(s->loop, s->telemetry, s->cfg, &s->audit, err));
	CGN_TRY(svc_crl_open(&s->crl, s->loop, s->telemetry, s->boot, err));
	CGN_TRY(access_new(s->cfg, s->audit, &s->access, err));
	CGN_TRY(tracing_open(s->loop, s->program->name, s->telemetry, &s->tracing, err));
	CGN_TRY(provider_open(s, err));
	CGN_TRY(admin_open(s, err));
	return s->program->start(s, s->boot, &s->state, err);
}

/* ---- sockets that outlive the process ---- */

static void socket_keep(void *arg, int fd)
{
	const struct svc *s = arg;
	svc_notify_store(&s->notify, fd);
}

static void socket_forget(void *arg, const char *name)
{
	const struct svc *s = arg;
	cgn_log(INFO, "svc.socket_unused", F_STR("name", name), F_STR("then", "it is closed"));
	svc_notify_forget(&s->notify, name);
}

static void svc_serve(struct svc *s)
{
	if (s->phase == SVC_STARTING) /* The program's start may have drained already. */
		svc_move(s, SVC_SERVING);
	metric_set(METRIC_OF(s->telemetry, BUILD_INFO, s->program->name, CGN_VERSION), 1);
	svc_notify_send(&s->notify, "READY=1");
	if (s->notify.watchdog > 0)
		cgn_timer_set(&s->watchdog, s->notify.watchdog);
	cgn_log(INFO, "svc.ready", F_STR("version", CGN_VERSION),
		F_STR("admin", s->admin != NULL ? s->program->admin.addr(s->boot) : "none"),
		F_U64("admin_port", s->admin != NULL ? svc_admin_port(s->admin) : 0), F_I64("pid", getpid()));
	svc_ports_warn(s->program, s->boot);
	life_note(s, "program.start", "", NULL);
	if (long_signal != 0) /* The signal came too late to end the start: the loop's handler takes it. */
		(void)raise(long_signal);
	cgn_loop_run(s->loop);
}

/* Also called after a failed start: each part may be missing. */
static void svc_close(struct svc *s)
{
	signals_give_back();
	if (s->loop != NULL) {
		cgn_timer_cancel(&s->watchdog);
		cgn_timer_cancel(&s->drain);
		svc_certs_fini(&s->certs);
		svc_crl_close(&s->crl);
		svc_follow_close(&s->follow);
		svc_memory_fini(&s->memory);
		svc_shortage_fini(&s->shortage);
		if (s->state != NULL && s->program->stop != NULL)
			s->program->stop(&s->state);
		tracing_close(&s->tracing);
		svc_admin_close(&s->admin);
		login_close(&s->login);
		oidc_close(&s->oidc);
		if (s->admin_tls != NULL)
			tls_ctx_free(&s->admin_tls);
		access_free(&s->access);
		audit_close(&s->audit);
		cgn_loop_close(&s->loop);
		signals_give_back(); /* The loop has set SIGTERM to the system's default. */
	}
	cgn_buf_fini(&s->reload.refused.text);
	cgn_buf_fini(&s->reload.waits);
	telemetry_free(&s->telemetry);
	svc_notify_close(&s->notify);
	if (s->cfg != s->boot)
		config_free(&s->cfg);
	config_free(&s->boot);
	s->tag = 0;
}

static int svc_run(const struct svc_program *p, const struct svc_args *args, struct config **take)
{
	struct svc s = {.tag = SVC_TAG, .program = p, .args = args, .boot = *take, .cfg = *take};
	struct cgn_err err = {0};
	*take = NULL;
	logs_follow(p, s.boot);
	log_to_journal(stderr_is_journal());
	files_raise();
	net_name_set_interval(s.boot->cluster.lookup_interval);
	svc_notify_open(&s.notify);
	net_inherit_begin();
	net_inherit_offer(socket_keep, &s);
	bool started = cgn_ok(svc_start(&s, &err));
	net_inherit_offer(NULL, NULL);
	net_inherit_end(started ? socket_forget : NULL, &s);
	if (started)
		svc_serve(&s);
	else if (s.start_ended && err.code == CGN_CANCELLED)
		cgn_log(INFO, "svc.start_ended", F_STR("why", err.msg));
	else
		s.exit_code = error_print(p, &err); /* A single line on stderr, no log. */
	svc_close(&s);
	if (started)
		cgn_log(INFO, "svc.exit", F_I64("code", s.exit_code));
	return s.exit_code;
}

/* Print the configuration, and the problems of the files that a start would need to stderr. */
static int check_all(const struct svc_program *p, const struct config *cfg)
{
	struct cgn_buf text = {0};
	struct svc_problems found = {.n = 0};
	config_print(cfg, &text);
	int rc = print_and_free(&text);
	svc_check_provider(&found, cfg);
	if (p->check != NULL)
		p->check(cfg, &found);
	struct cgn_str rest = cgn_buf_view(&found.text);
	while (rest.n > 0) {
		struct cgn_str line = cgn_str_split(&rest, '\n');
		(void)fprintf(stderr, "%s: %.*s\n", p->name, CGN_STR_ARG(line));
	}
	cgn_buf_fini(&found.text);
	return found.n > 0 ? cgn_code_exit(found.first) : rc;
}

/* Container engines know 0 and 1 only. */
static int probe_print(const struct svc_program *p, const struct svc_args *args, const struct config *cfg)
{
	struct cgn_err err = {0};
	if (cgn_ok(svc_probe(p, cfg, args->probe, &err))) {
		(void)printf("%s: %s\n", p->name, args->probe);
		return 0;
	}
	(void)error_print(p, &err);
	return 1;
}

int svc_main(const struct svc_program *p, int argc, char **argv)
{
	CGN_ON_EXIT(svc_args_fini) struct svc_args args = {0};
	CGN_ON_EXIT(config_free) struct config *cfg = NULL;
	struct cgn_buf text = {0};
	struct cgn_err err = {0};
	if (!cgn_ok(svc_args_parse(p, argc, argv, &args, &err))) {
		(void)error_print(p, &err);
		return 2;
	}
	if (args.mode == SVC_HELP) {
		svc_help(p, &text);
		return print_and_free(&text);
	}
	if (args.mode == SVC_VERSION) {
		cgn_buf_fmt(&text, "%s %s\n", p->name, CGN_VERSION);
		return print_and_free(&text);
	}
	cgn_rc rc = args.mode == SVC_PRINT || args.mode == SVC_PROBE
		? svc_config_load(&args, &cfg, &err)
		: config_load_checked(p, &args, &cfg, &err);
	if (!cgn_ok(rc))
		return error_print(p, &err);
	if (args.mode == SVC_CHECK)
		return check_all(p, cfg);
	if (args.mode == SVC_PROBE)
		return probe_print(p, &args, cfg);
	if (args.mode == SVC_PRINT) {
		if (cgn_ok(p->print.print(cfg, &text, &err)))
			return print_and_free(&text);
		cgn_buf_fini(&text);
		return error_print(p, &err);
	}
	return svc_run(p, &args, &cfg);
}

struct audit *svc_audit(struct svc *s)
{
	CGN_LIVE(s, SVC_TAG);
	return s->audit;
}

struct cgn_loop *svc_loop(struct svc *s)
{
	CGN_LIVE(s, SVC_TAG);
	return s->loop;
}

struct tracing *svc_tracing(struct svc *s)
{
	CGN_LIVE(s, SVC_TAG);
	return s->tracing;
}

struct oidc *svc_oidc(struct svc *s)
{
	CGN_LIVE(s, SVC_TAG);
	return s->cfg->auth.oidc_issuer != NULL ? s->oidc : NULL;
}

struct access *svc_access(struct svc *s)
{
	CGN_LIVE(s, SVC_TAG);
	return s->access;
}

void svc_open_ports(const struct svc *s, struct cgn_buf *out)
{
	CGN_LIVE(s, SVC_TAG);
	svc_ports_open(s->program, s->boot, out);
}

struct telemetry *svc_telemetry(struct svc *s)
{
	CGN_LIVE(s, SVC_TAG);
	return s->telemetry;
}

void svc_watch_certificate(struct svc *s, const char *key, struct tls_ctx *tls)
{
	CGN_LIVE(s, SVC_TAG);
	svc_certs_add(&s->certs, s->telemetry, key, tls);
}

void svc_drained(struct svc *s)
{
	CGN_LIVE(s, SVC_TAG);
	cgn_loop_stop(s->loop);
}

void svc_memory_tune(struct svc *s)
{
	CGN_LIVE(s, SVC_TAG);
	svc_memory_start(&s->memory);
}
