/* SPDX-License-Identifier: Apache-2.0 */
/* fingerprint: the digest of what two llama-servers must have in common to share states: the build, the weights,
 * the adapters with their scales, the tokens of a slot, and the launch options. Files count by their content,
 * so that nodes may store them anywhere. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "joint/kv/slotmgr/slotmgr_priv.h"
#include "policy/kv/slots/options.h"

#define PROPS_BYTES    ((size_t)8 * 1024 * 1024) /* The answer to /props contains a chat template */
#define READ_BYTES     ((size_t)1024 * 1024)
#define RETRY_DELAY    (5 * CGN_SEC)
#define PATH_BYTES     4096
#define REREAD_TIMEOUT (30 * CGN_SEC) /* The engine answers between two steps of its other work */

/* The fingerprint's parts, each followed by a zero: a text as it stands, or the path of a file whose content
 * counts. */
enum part { PART_TEXT = 't', PART_FILE = 'f', PART_MODEL = 'm' /* May be split into several files */ };

struct fingerprint_job {
	struct slotmgr *mgr; /* NULL: cancelled */
	void (*known)(struct slotmgr *m, const struct digest *fingerprint, uint32_t n_slots,
		const char *build);
	struct webask *fetch;
	struct cgn_timer retry;
	bool on_pool;
	char build[128];
	uint32_t slots;
	struct cgn_buf parts;
	/* Written on the thread pool */
	struct weights_sum kept[WEIGHTS_KEPT];
	struct cgn_buf sums;   /* Texts and checksums of the parts, which the digest covers */
	char path[PATH_BYTES]; /* File that is being read, or could not be */
	int failed;            /* errno */
};

/* ---- weights ---- */

/* The engine may name a pipe, whose open would block. */
static int weights_open(const char *path)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)))
		return fd;
	(void)close(fd);
	errno = EINVAL;
	return -1;
}

static uint64_t time_ns(struct timespec t)
{
	return (uint64_t)t.tv_sec * CGN_SEC + (uint64_t)t.tv_nsec;
}

/* Fill |out| with what tells the open file from others, without its sum. */
static void weights_stamp(int fd, struct weights_sum *out)
{
	struct stat st;
	*out = (struct weights_sum){.bytes = 0};
	if (fstat(fd, &st) == 0)
		*out = (struct weights_sum){.device = (uint64_t)st.st_dev,
			.inode = (uint64_t)st.st_ino,
			.bytes = (uint64_t)st.st_size,
			.modified_ns = time_ns(st.st_mtim),
			.changed_ns = time_ns(st.st_ctim)};
}

/* Return the place of the file's sum in |kept|; if the file is not there, an empty one or the last. */
static struct weights_sum *weights_find(struct weights_sum kept[WEIGHTS_KEPT], const struct weights_sum *file)
{
	size_t i = 0;
	while (i + 1 < WEIGHTS_KEPT && kept[i].bytes > 0 &&
		memcmp(&kept[i], file, offsetof(struct weights_sum, sum)) != 0)
		i++;
	return &kept[i];
}

static int weights_read(int fd, struct weights_sum *file)
{
	XXH3_state_t *state = XXH3_createState();
	char *bytes = CGN_NEW_ARRAY(char, READ_BYTES);
	ssize_t n;
	XXH128_canonical_t sum;
	CGN_MUST(state != NULL);
	(void)XXH3_128bits_reset(state);
	while ((n = read(fd, bytes, READ_BYTES)) > 0)
		(void)XXH3_128bits_update(state, bytes, (size_t)n);
	int failed = n == 0 ? 0 : errno;
	XXH128_canonicalFromHash(&sum, XXH3_128bits_digest(state));
	memcpy(file->sum, &sum, sizeof file->sum);
	free(bytes);
	(void)XXH3_freeState(state);
	return failed;
}

static int weights_sum_file(struct fingerprint_job *p, const char *path)
{
	struct weights_sum file;
	int failed = 0, fd = weights_open(path);
	if (fd < 0)
		return errno;
	weights_stamp(fd, &file);
	struct weights_sum *kept = weights_find(p->kept, &file);
	if (file.bytes == 0 || memcmp(kept, &file, offsetof(struct weights_sum, sum)) != 0) {
		failed = weights_read(fd, &file);
		if (failed == 0)
			*kept = file;
	} else {
		file = *kept;
	}
	cgn_buf_add(&p->sums, file.sum, sizeof file.sum);
	(void)close(fd);
	return failed;
}

/* Return the number of files of a model: "…-00001-of-00003.gguf" is one of three. |*at|: offset of the file
 * number in |path|, set when the model has several files. */
static unsigned weights_parts(const char *path, size_t *at)
{
	size_t n = strlen(path);
	unsigned first = 0, of = 0;
	const char *tail = n > 20 ? path + n - 20 : NULL;
	if (tail == NULL || sscanf(tail, "-%5u-of-%5u.gguf", &first, &of) != 2 || first != 1 || of > 10000)
		return 1;
	*at = n - 19;
	return of;
}

static int weights_sum_model(struct fingerprint_job *p, const char *model)
{
	size_t at = 0;
	unsigned parts = weights_parts(model, &at);
	int failed = weights_sum_file(p, model);
	for (unsigned i = 2; i <= parts && failed == 0; i++) {
		char number[6];
		(void)snprintf(number, sizeof number, "%05u", i % 100000);
		(void)cgn_str_copyz(p->path, sizeof p->path, cgn_str_of(model));
		memcpy(p->path + at, number, 5);
		failed = weights_sum_file(p, p->path);
	}
	return failed;
}

static void weights_sum_work(void *arg)
{
	struct fingerprint_job *p = arg;
	const char *part = p->parts.p, *end = part + p->parts.n;
	for (; part < end && p->failed == 0; part += strlen(part) + 1) {
		cgn_buf_add(&p->sums, part, 1);
		if (*part == PART_TEXT) {
			cgn_buf_add(&p->sums, part + 1, strlen(part + 1) + 1);
			continue;
		}
		(void)cgn_str_copyz(p->path, sizeof p->path, cgn_str_of(part + 1));
		p->failed =
			*part == PART_MODEL ? weights_sum_model(p, part + 1) : weights_sum_file(p, part + 1);
	}
}

/* ---- all together ---- */

static void part_put(struct cgn_buf *parts, enum part kind, struct cgn_str text)
{
	const char tag = (char)kind;
	cgn_buf_add(parts, &tag, 1);
	cgn_buf_str(parts, text);
	cgn_buf_add(parts, "", 1);
}

static void parts_put_options(struct fingerprint_job *p, const char *const *args, size_t n)
{
	struct slot_options o = {.args = args, .n = n};
	struct slot_option part;
	while (slot_options_next(&o, &part))
		part_put(&p->parts, part.is_file ? PART_FILE : PART_TEXT, part.text);
}

static int compare_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A managed server has the agent's environment, whose order is arbitrary. */
static void parts_put_environment(struct fingerprint_job *p)
{
	size_t n = 0, most = 0;
	while (environ[most] != NULL)
		most++;
	const char **ours = CGN_NEW_ARRAY(const char *, most);
	for (size_t i = 0; i < most; i++)
		if (slot_options_in_env(environ[i]))
			ours[n++] = environ[i];
	if (n > 0)
		qsort(ours, n, sizeof *ours, compare_text);
	for (size_t i = 0; i < n; i++)
		part_put(&p->parts, PART_TEXT, cgn_str_of(ours[i]));
	free(ours);
}

static void parts_put_launch(struct fingerprint_job *p)
{
	const struct slot_fingerprint *f = &p->mgr->fingerprint;
	part_put(&p->parts, PART_TEXT, cgn_str_of(f->kv_tag));
	parts_put_options(p, f->extra_args, f->n_extra_args);
	if (f->managed)
		parts_put_environment(p);
}

static void job_free(struct fingerprint_job *p)
{
	cgn_buf_fini(&p->parts);
	cgn_buf_fini(&p->sums);
	free(p);
}

static void on_weights_summed(void *arg)
{
	struct fingerprint_job *p = arg;
	struct slotmgr *m = p->mgr;
	p->on_pool = false;
	if (m == NULL) {
		job_free(p);
		return;
	}
	m->fingerprint.job = NULL;
	memcpy(m->fingerprint.kept, p->kept, sizeof p->kept);
	if (p->failed == 0 && !p->sums.bad) {
		struct digest d = digest_of(cgn_buf_view(&p->sums));
		p->known(m, &d, p->slots, p->build);
	} else {
		char why[160];
		(void)snprintf(why, sizeof why, "%.100s: %s", p->path,
			strerror(p->failed != 0 ? p->failed : ENOMEM));
		slotmgr_trouble(m, "the engine's weights can't be read", why);
	}
	job_free(p);
}

/* ---- the engine's answers ---- */

static void job_ask(struct fingerprint_job *p, const char *path, webask_done *done);
static void on_props(void *user, const struct webask_answer *r);

static void on_job_retry(struct cgn_timer *t)
{
	job_ask(CGN_CONTAINER(t, struct fingerprint_job, retry), "/props", on_props);
}

static void job_retry(struct fingerprint_job *p, const char *what, const struct webask_answer *r,
	const char *why)
{
	slotmgr_trouble(p->mgr, what, r->err->code != CGN_FINE ? r->err->msg : why);
	cgn_timer_set(&p->retry, RETRY_DELAY);
}

static bool json_get_text(struct json_val object, const char *key, char *out, size_t cap)
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

/* Append the path and the scale of each loaded adapter. False: |body| is not a list of adapters. */
static bool adapters_read(struct cgn_str body, struct cgn_buf *parts)
{
	struct json_val doc, adapter, scale;
	char path[PATH_BYTES];
	if (!cgn_ok(json_parse(body, &doc, NULL, NULL)) || doc.type != JSON_ARRAY)
		return false;
	for (struct json_iter it = json_iter_of(doc); json_next_elem(&it, &adapter);) {
		if (!json_get_text(adapter, "path", path, sizeof path) || !json_get(adapter, "scale", &scale))
			return false;
		part_put(parts, PART_FILE, cgn_str_of(path));
		part_put(parts, PART_TEXT, scale.raw);
	}
	return !parts->bad;
}

static void on_adapters(void *user, const struct webask_answer *r)
{
	struct fingerprint_job *p = user;
	struct slotmgr *m = p->mgr;
	p->fetch = NULL;
	/* A build without adapters */
	bool none = r->err->code == CGN_FINE && (r->status == 404 || r->status == 501);
	cgn_buf_fini(&m->fingerprint.adapters);
	if (!none && !(webask_is_ok(r) && adapters_read(r->body, &m->fingerprint.adapters))) {
		job_retry(p, "/lora-adapters can't be read", r, "it lists no adapters with path and scale");
		return;
	}
	cgn_buf_str(&p->parts, cgn_buf_view(&m->fingerprint.adapters));
	parts_put_launch(p);
	p->on_pool = !p->parts.bad;
	if (p->on_pool)
		cgn_loop_work(m->loop, weights_sum_work, on_weights_summed, p);
	else
		job_retry(p, "the engine's fingerprint can't be computed", r, "no memory");
}

/* The tokens of a slot count, because some models choose their table of rotary positions by them. */
static bool props_read(struct fingerprint_job *p, struct cgn_str body)
{
	const struct slot_fingerprint *f = &p->mgr->fingerprint;
	struct json_val doc, defaults;
	char model[sizeof p->path], context[32];
	if (!cgn_ok(json_parse(body, &doc, NULL, NULL)) ||
		!json_get(doc, "default_generation_settings", &defaults))
		return false;
	uint64_t slots = json_get_u64(doc, "total_slots", 0), n_ctx = json_get_u64(defaults, "n_ctx", 0);
	if (slots == 0 || slots > SLOTS_MAX || n_ctx == 0 ||
		!json_get_text(doc, "build_info", p->build, sizeof p->build) ||
		!json_get_text(doc, "model_path", model, sizeof model))
		return false;
	p->slots = (uint32_t)slots;
	p->parts.n = p->sums.n = 0;
	(void)snprintf(context, sizeof context, "%llu", (unsigned long long)n_ctx);
	part_put(&p->parts, PART_TEXT, CGN_STR("cognitora.slots.v3"));
	part_put(&p->parts, PART_TEXT, cgn_str_of(p->build));
	part_put(&p->parts, PART_TEXT, cgn_str_of(context));
	/* The path of an engine that is not managed may not exist on this machine. */
	part_put(&p->parts, PART_MODEL,
		cgn_str_of(f->model_path != NULL && !f->managed ? f->model_path : model));
	return true;
}

static void on_props(void *user, const struct webask_answer *r)
{
	struct fingerprint_job *p = user;
	p->fetch = NULL;
	if (webask_is_ok(r) && props_read(p, r->body))
		job_ask(p, "/lora-adapters", on_adapters);
	else
		job_retry(p, "/props can't be read", r,
			"it has no total_slots (up to 1024), build_info, model_path and n_ctx of a slot");
}

static CGN_RC fingerprint_get(struct slotmgr *m, const char *path, cgn_nsec timeout, webask_done *done,
	void *user, struct webask **out, struct cgn_err *err)
{
	const struct webask_question get = {.path = path, .max_bytes = PROPS_BYTES, .timeout = timeout};
	return webask_start(m->loop, &m->endpoint, &get, done, user, out, err);
}

static void job_ask(struct fingerprint_job *p, const char *path, webask_done *done)
{
	if (!cgn_ok(fingerprint_get(p->mgr, path, RETRY_DELAY, done, p, &p->fetch, NULL)))
		cgn_timer_set(&p->retry, RETRY_DELAY);
}

void fingerprint_start(struct slotmgr *m,
	void (*known)(struct slotmgr *m, const struct digest *fingerprint, uint32_t n_slots,
		const char *build))
{
	if (m->fingerprint.job != NULL)
		return;
	struct fingerprint_job *p = CGN_NEW(struct fingerprint_job);
	p->mgr = m;
	p->known = known;
	memcpy(p->kept, m->fingerprint.kept, sizeof p->kept);
	cgn_timer_init(&p->retry, m->loop, on_job_retry);
	m->fingerprint.job = p;
	job_ask(p, "/props", on_props);
}

void fingerprint_cancel(struct slotmgr *m)
{
	struct fingerprint_job *p = m->fingerprint.job;
	m->fingerprint.job = NULL;
	if (p == NULL)
		return;
	p->mgr = NULL;
	cgn_timer_cancel(&p->retry);
	webask_cancel(&p->fetch);
	if (!p->on_pool)
		job_free(p);
}

/* ---- adapters, which may change ---- */

bool fingerprint_may_change(const struct slotmgr *m)
{
	return m->fingerprint.adapters.n > 0;
}

CGN_RC fingerprint_reread(struct slotmgr *m, webask_done *done, void *user, struct webask **out,
	struct cgn_err *err)
{
	return fingerprint_get(m, "/lora-adapters", REREAD_TIMEOUT, done, user, out, err);
}

enum fingerprint_match fingerprint_compare(const struct slotmgr *m, const struct webask_answer *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf now = {.n = 0};
	if (!webask_is_ok(r) || !adapters_read(r->body, &now))
		return FINGERPRINT_UNKNOWN;
	return now.n == m->fingerprint.adapters.n && memcmp(now.p, m->fingerprint.adapters.p, now.n) == 0
		? FINGERPRINT_SAME
		: FINGERPRINT_CHANGED;
}
