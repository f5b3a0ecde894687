/* SPDX-License-Identifier: Apache-2.0 */
/* print: the fingerprint of a llama-server, which says whose states mean the same to it: its build, its
 * weights, adapters with their scales, how many tokens a slot has, and how it was started. Files by their
 * content, so that nodes may keep them wherever they like. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "agent/slotmgr.h"
#include "base/codec/codec.h"
#include "base/log/log.h"
#include "policy/slots/options.h"

#define PROPS_BYTES  ((size_t)8 * 1024 * 1024) /* with a chat template */
#define READ_BYTES   ((size_t)1024 * 1024)
#define AGAIN        (5 * CGN_SEC)
#define PATH_BYTES   4096
#define LOOK_TIMEOUT (30 * CGN_SEC) /* it answers between two steps of its other work */

/* What it is made of, in order, each with a zero behind it: as it stands, or the content of a file. */
enum part { PART_TEXT = 't', PART_FILE = 'f', PART_MODEL = 'm' /* of which there may be several files */ };

struct print {
	struct keep *keep; /* NULL: nobody waits for it any more */
	struct fetch *fetch;
	struct cgn_timer again;
	bool on_pool;
	char build[128];
	uint32_t slots;
	struct cgn_buf parts;
	/* On the pool. */
	struct cgn_buf sums;   /* of the parts: what the digest is of */
	char path[PATH_BYTES]; /* of the file that can't be read */
	int failed;            /* errno */
};

/* ---- weights ---- */

/* The engine may name anything: a pipe would be waited for. */
static int open_file(const char *path)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)))
		return fd;
	(void)close(fd);
	errno = EINVAL;
	return -1;
}

static int sum_file(const char *path, struct cgn_buf *sums)
{
	int fd = open_file(path);
	XXH3_state_t *state = fd >= 0 ? XXH3_createState() : NULL;
	void *bytes = malloc(READ_BYTES);
	ssize_t n = -1;
	int failed = fd < 0 ? errno : ENOMEM;
	if (state != NULL && bytes != NULL) {
		(void)XXH3_128bits_reset(state);
		while ((n = read(fd, bytes, READ_BYTES)) > 0)
			(void)XXH3_128bits_update(state, bytes, (size_t)n);
		failed = n == 0 ? 0 : errno;
		XXH128_canonical_t sum;
		XXH128_canonicalFromHash(&sum, XXH3_128bits_digest(state));
		cgn_buf_add(sums, &sum, sizeof sum);
	}
	free(bytes);
	(void)XXH3_freeState(state);
	if (fd >= 0)
		(void)close(fd);
	return failed;
}

/* "…-00001-of-00003.gguf" is three files. Returns how many; |at| is where the number stands. */
static unsigned parts_of(const char *path, size_t *at)
{
	size_t n = strlen(path);
	unsigned first = 0, of = 0;
	const char *tail = n > 20 ? path + n - 20 : NULL;
	if (tail == NULL || sscanf(tail, "-%5u-of-%5u.gguf", &first, &of) != 2 || first != 1 || of > 10000)
		return 1;
	*at = n - 19;
	return of;
}

static int sum_model(struct print *p, const char *model)
{
	size_t at = 0;
	unsigned parts = parts_of(model, &at);
	int failed = sum_file(model, &p->sums);
	for (unsigned i = 2; i <= parts && failed == 0; i++) {
		char number[6];
		(void)snprintf(number, sizeof number, "%05u", i % 100000);
		(void)cgn_str_copyz(p->path, sizeof p->path, cgn_str_of(model));
		memcpy(p->path + at, number, 5);
		failed = sum_file(p->path, &p->sums);
	}
	return failed;
}

static void sum_work(void *arg)
{
	struct print *p = arg;
	const char *part = p->parts.p, *end = part + p->parts.n;
	for (; part < end && p->failed == 0; part += strlen(part) + 1) {
		cgn_buf_add(&p->sums, part, 1);
		if (*part == PART_TEXT) {
			cgn_buf_add(&p->sums, part + 1, strlen(part + 1) + 1);
			continue;
		}
		(void)cgn_str_copyz(p->path, sizeof p->path, cgn_str_of(part + 1));
		p->failed = *part == PART_MODEL ? sum_model(p, part + 1) : sum_file(part + 1, &p->sums);
	}
}

/* ---- all together ---- */

static void put_part(struct cgn_buf *parts, enum part kind, struct cgn_str text)
{
	const char tag = (char)kind;
	cgn_buf_add(parts, &tag, 1);
	cgn_buf_str(parts, text);
	cgn_buf_add(parts, "", 1);
}

static void put_options(struct print *p, const char *const *args, size_t n)
{
	struct slot_options o = {.args = args, .n = n};
	struct slot_option part;
	while (slot_options_next(&o, &part))
		put_part(&p->parts, part.is_file ? PART_FILE : PART_TEXT, part.text);
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A server that we start has our environment, in whichever order. */
static void put_environment(struct print *p)
{
	size_t n = 0, most = 0;
	while (environ[most] != NULL)
		most++;
	const char **ours = malloc((most + 1) * sizeof *ours);
	for (size_t i = 0; ours != NULL && i < most; i++)
		if (slot_options_in_env(environ[i]))
			ours[n++] = environ[i];
	p->parts.bad |= ours == NULL;
	if (n > 0)
		qsort(ours, n, sizeof *ours, by_text);
	for (size_t i = 0; i < n; i++)
		put_part(&p->parts, PART_TEXT, cgn_str_of(ours[i]));
	free(ours);
}

static void put_told(struct print *p)
{
	const struct engine *e = p->keep->e;
	put_part(&p->parts, PART_TEXT, cgn_str_of(p->keep->tag_text));
	put_options(p, e->extra_args, e->n_extra_args);
	if (e->sup.cfg.managed)
		put_environment(p);
}

static void fingerprint_free(struct print *p)
{
	cgn_buf_fini(&p->parts);
	cgn_buf_fini(&p->sums);
	free(p);
}

static void sum_done(void *arg)
{
	struct print *p = arg;
	struct keep *k = p->keep;
	p->on_pool = false;
	if (k == NULL) {
		fingerprint_free(p);
		return;
	}
	k->print = NULL;
	if (p->failed == 0 && !p->sums.bad) {
		struct digest d = digest_of(cgn_buf_view(&p->sums));
		slotmgr_fingerprint_known(k, &d, p->slots, p->build);
	} else {
		char why[160];
		(void)snprintf(why, sizeof why, "%.100s: %s", p->path,
			strerror(p->failed != 0 ? p->failed : ENOMEM));
		slotmgr_trouble(k, "its weights can't be read", why);
	}
	fingerprint_free(p);
}

/* ---- what it says ---- */

static void ask(struct print *p, const char *path, void (*done)(void *user, const struct fetch_result *r));
static void on_props(void *user, const struct fetch_result *r);

static void on_again(struct cgn_timer *t)
{
	ask(CGN_CONTAINER(t, struct print, again), "/props", on_props);
}

static void ask_again(struct print *p, const char *what, const struct fetch_result *r, const char *why)
{
	slotmgr_trouble(p->keep, what, r->err->code != CGN_FINE ? r->err->msg : why);
	cgn_timer_set(&p->again, AGAIN);
}

static bool get_text(struct json_val object, const char *key, char *out, size_t cap)
{
	struct json_val v;
	struct cgn_buf b = cgn_buf_over(out, cap);
	if (!json_get(object, key, &v) || v.type != JSON_STRING)
		return false;
	json_str_to(v, &b);
	if (b.bad || b.n == 0 || b.n == cap || memchr(out, '\0', b.n) != NULL)
		return false;
	out[b.n] = '\0';
	return true;
}

/* Of those that it has loaded: which, and how strongly they count unless a request says otherwise. */
static bool adapters_read(struct cgn_str body, struct cgn_buf *parts)
{
	struct json_val doc, adapter, scale;
	char path[PATH_BYTES];
	if (!cgn_ok(json_parse(body, &doc, NULL, NULL)) || doc.type != JSON_ARRAY)
		return false;
	for (struct json_iter it = json_iter_of(doc); json_next_elem(&it, &adapter);) {
		if (!get_text(adapter, "path", path, sizeof path) || !json_get(adapter, "scale", &scale))
			return false;
		put_part(parts, PART_FILE, cgn_str_of(path));
		put_part(parts, PART_TEXT, scale.raw);
	}
	return !parts->bad;
}

static void on_adapters(void *user, const struct fetch_result *r)
{
	struct print *p = user;
	struct keep *k = p->keep;
	p->fetch = NULL;
	/* a build that knows none */
	bool none = r->err->code == CGN_FINE && (r->status == 404 || r->status == 501);
	cgn_buf_fini(&k->adapters);
	if (!none &&
		!(r->err->code == CGN_FINE && r->status == 200 && adapters_read(r->body, &k->adapters))) {
		ask_again(p, "/lora-adapters can't be read", r, "it lists no adapters with path and scale");
		return;
	}
	cgn_buf_str(&p->parts, cgn_buf_view(&k->adapters));
	put_told(p);
	p->on_pool = !p->parts.bad && cgn_ok(cgn_loop_work(k->e->agent->loop, sum_work, sum_done, p));
	if (!p->on_pool)
		ask_again(p, "its fingerprint can't be made", r, "no memory");
}

/* How many tokens a slot has is part of it: some models turn positions by one table or another, depending on
 * that. */
static bool props_read(struct print *p, struct cgn_str body)
{
	const struct engine *e = p->keep->e;
	struct json_val doc, defaults;
	char model[sizeof p->path], context[32];
	if (!cgn_ok(json_parse(body, &doc, NULL, NULL)) ||
		!json_get(doc, "default_generation_settings", &defaults))
		return false;
	uint64_t slots = json_get_u64(doc, "total_slots", 0), n_ctx = json_get_u64(defaults, "n_ctx", 0);
	if (slots == 0 || slots > SLOTS_MAX || n_ctx == 0 ||
		!get_text(doc, "build_info", p->build, sizeof p->build) ||
		!get_text(doc, "model_path", model, sizeof model))
		return false;
	p->slots = (uint32_t)slots;
	p->parts.n = p->sums.n = 0;
	(void)snprintf(context, sizeof context, "%llu", (unsigned long long)n_ctx);
	put_part(&p->parts, PART_TEXT, CGN_STR("cognitora.slots.v2"));
	put_part(&p->parts, PART_TEXT, cgn_str_of(p->build));
	put_part(&p->parts, PART_TEXT, cgn_str_of(context));
	/* One that somebody else started may have another folder, or none of this machine's. */
	put_part(&p->parts, PART_MODEL,
		cgn_str_of(e->model_path != NULL && !e->sup.cfg.managed ? e->model_path : model));
	return true;
}

static void on_props(void *user, const struct fetch_result *r)
{
	struct print *p = user;
	p->fetch = NULL;
	if (r->err->code == CGN_FINE && r->status == 200 && props_read(p, r->body))
		ask(p, "/lora-adapters", on_adapters);
	else
		ask_again(p, "/props can't be read", r,
			"it has no total_slots (up to 1024), build_info, model_path and n_ctx of a slot");
}

static CGN_RC get(struct keep *k, const char *path, cgn_nsec timeout,
	void (*done)(void *user, const struct fetch_result *r), void *user, struct fetch **out,
	struct cgn_err *err)
{
	const struct fetch_ask get = {.client = k->e->client,
		.url = &k->e->url,
		.path = path,
		.authorization = k->e->authorization,
		.max_bytes = PROPS_BYTES,
		.timeout = timeout};
	return fetch_start(k->e->agent->loop, &get, done, user, out, err);
}

static void ask(struct print *p, const char *path, void (*done)(void *user, const struct fetch_result *r))
{
	if (!cgn_ok(get(p->keep, path, AGAIN, done, p, &p->fetch, NULL)))
		cgn_timer_set(&p->again, AGAIN);
}

void fingerprint_start(struct keep *k)
{
	struct print *p = k->print == NULL ? calloc(1, sizeof *p) : NULL;
	if (p == NULL)
		return;
	p->keep = k;
	cgn_timer_init(&p->again, k->e->agent->loop, on_again);
	k->print = p;
	ask(p, "/props", on_props);
}

void fingerprint_cancel(struct keep *k)
{
	struct print *p = k->print;
	k->print = NULL;
	if (p == NULL)
		return;
	p->keep = NULL;
	cgn_timer_cancel(&p->again);
	fetch_cancel(&p->fetch);
	if (!p->on_pool)
		fingerprint_free(p);
}

/* ---- what may change while it runs ---- */

bool fingerprint_may_change(const struct keep *k)
{
	return k->adapters.n > 0;
}

CGN_RC fingerprint_reread(struct keep *k, void (*done)(void *user, const struct fetch_result *r), void *user,
	struct fetch **out, struct cgn_err *err)
{
	return get(k, "/lora-adapters", LOOK_TIMEOUT, done, user, out, err);
}

enum fingerprint_match fingerprint_compare(const struct keep *k, const struct fetch_result *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf now = {.n = 0};
	if (r->err->code != CGN_FINE || r->status != 200 || !adapters_read(r->body, &now))
		return FINGERPRINT_UNKNOWN;
	return now.n == k->adapters.n && memcmp(now.p, k->adapters.p, now.n) == 0 ? FINGERPRINT_SAME
										  : FINGERPRINT_CHANGED;
}
