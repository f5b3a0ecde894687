/* SPDX-License-Identifier: Apache-2.0 */
/* files: cordons (one id per line) and the documents of operators in cluster.state_dir, for backends without etcd.
 * All are read at the start; afterwards only the router writes them that holds the place (place.c). The thread pool
 * writes: the loop waits for no disk. */
#include <errno.h>
#include <unistd.h>

#include "base/log/log.h"
#include "io/os/disk/disk.h"
#include "joint/cluster/state/files_priv.h"

#define CORDONS_MAX_BYTES ((size_t)1024 * 1024)

static void cordons_take(const struct state_files *f, struct state_watch *s, struct cgn_str text,
	void (*take)(struct state_watch *s, const char *id))
{
	char id[PROTO_MAX_ID + 1];
	while (text.p != NULL) {
		struct cgn_str line = cgn_str_split(&text, '\n');
		if (line.n == 0)
			continue;
		if (!proto_node_id_ok(line) || s->cordons.n >= STATE_MAX_NODES) {
			cgn_log_limited(WARN, "state.cordon_ignored",
				F_STR("file", statefile_path(f->cordons)), F_STRN("line", line));
			continue;
		}
		(void)cgn_str_copyz(id, sizeof id, line);
		take(s, id);
	}
}

static void cordon_add(struct state_watch *s, const char *id)
{
	if (roster_find(&s->cordons, id) == NULL)
		(void)roster_add(&s->cordons, id);
}

static void cordon_tell(struct state_watch *s, const char *id)
{
	state_cordon_seen(s, id, true);
}

/* The router writes an empty line where there are no cordons, so a file without a byte is not the router's own. */
static void warn_if_emptied(const struct state_files *f, const struct cgn_buf *text)
{
	if (text->n == 0)
		cgn_log(WARN, "state.cordons_empty", F_STR("file", statefile_path(f->cordons)),
			F_STR("then",
				"no node counts as cordoned; cordon them again if the file was emptied"));
}

/* Return true if |text| is what the file has; no file: nothing. */
static bool cordons_read(const struct state_files *f, struct cgn_buf *text)
{
	struct cgn_err why;
	cgn_rc rc = disk_read_file(statefile_path(f->cordons), CORDONS_MAX_BYTES, text, &why);
	if (cgn_ok(rc))
		warn_if_emptied(f, text);
	if (cgn_ok(rc) || rc.code == CGN_NOT_FOUND)
		return true;
	cgn_log(ERROR, "state.cordons_unreadable", F_STR("why", why.msg),
		F_STR("then", "nodes that were cordoned are in use"));
	return false;
}

/* Log a warning only: without a cordon or a policy there is nothing to write. */
static void warn_unless_writable(const char *dir)
{
	struct cgn_err err;
	if (!cgn_ok(disk_mkdirs(dir, 0755, &err)))
		cgn_log(WARN, "state.dir_not_writable", F_STR("dir", dir), F_STR("why", err.msg),
			F_STR("then", "cordons, policies and wanted models cannot be stored"));
	else if (access(dir, W_OK) != 0)
		cgn_log(WARN, "state.dir_not_writable", F_STR("dir", dir), F_STR("why", strerror(errno)),
			F_STR("then", "cordons, policies and wanted models cannot be stored"));
}

/* Log why other routers' files are only read here. */
static void warn_unless_own(struct state_watch *s)
{
	struct cgn_err err;
	if (!state_place_hold(&s->place, &err))
		cgn_log(WARN, "state.dir_shared", F_STR("why", err.msg),
			F_STR("then",
				"this router reads the cordons and documents there, and refuses to change them"));
}

static void document_open(struct state_files *f, const char *dir, enum state_document d)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	struct state_text *t = &f->s->documents[d];
	cgn_buf_fmt(&path, "%s/%s.%s", dir, f->s->cluster, state_document_name(d));
	t->where = cgn_str_dupz(cgn_buf_view(&path));
	f->documents[d].f = f;
	f->documents[d].file = statefile_open(f->s->loop, t->where, state_document_title(d));
	if (!state_document_read(t->where, d, &t->text))
		t->text.n = 0;
}

void state_files_open(struct state_files *f, struct state_watch *s, const struct config *cfg)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	const char *dir = cfg->cluster.state_dir;
	cgn_buf_fmt(&path, "%s/%s.cordons", dir, s->cluster);
	f->s = s;
	f->cordons = statefile_open(s->loop, cgn_buf_z(&path), "cordons");
	warn_unless_writable(dir);
	warn_unless_own(s);
	(void)cordons_read(f, &text);
	cordons_take(f, s, cgn_buf_view(&text), cordon_add);
	for (size_t d = 0; d < STATE_DOCUMENTS; d++)
		document_open(f, dir, (enum state_document)d);
}

/* Another router held the place until now: take what it left. What cannot be read stays as it was. */
static void files_read_again(struct state_files *f, struct state_watch *s)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf cordons = {.n = 0};
	if (!cordons_read(f, &cordons))
		return;
	state_written_begin(s);
	cordons_take(f, s, cgn_buf_view(&cordons), cordon_tell);
	for (size_t d = 0; d < STATE_DOCUMENTS; d++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
		s->documents[d].marked = false;
		if (state_document_read(s->documents[d].where, (enum state_document)d, &text))
			state_document_seen(s, (enum state_document)d, cgn_buf_view(&text));
	}
	state_written_end(s);
}

bool state_files_hold(struct state_files *f, struct state_watch *s, struct cgn_err *err)
{
	bool held = s->place.fd >= 0;
	if (!state_place_hold(&s->place, err))
		return false;
	if (!held && s->place.fd >= 0)
		files_read_again(f, s);
	return true;
}

void state_files_failed(struct state_request *rq, const struct cgn_err *why)
{
	(void)CGN_FAIL_AS(&rq->err, CGN_STORAGE,
		"cannot be stored: %s; set cluster.state_dir to a folder that the router may write",
		why->msg);
}

/* ---- cordons ---- */

/* Find the last request of the write that is under way about |id|; NULL: there is none. */
static const struct state_request *request_about(struct state_watch *s, const char *id)
{
	const struct state_request *last = NULL;
	cgn_list_each (it, &s->requests) {
		const struct state_request *rq = CGN_CONTAINER(it, struct state_request, link);
		if (rq->writing && strcmp(rq->id, id) == 0)
			last = rq;
	}
	return last;
}

struct cordons_text {
	struct state_watch *s;
	struct cgn_buf text;
};

static void cordon_put(void *arg, struct roster_entry *e)
{
	struct cordons_text *t = arg;
	if (request_about(t->s, e->id) == NULL)
		cgn_buf_fmt(&t->text, "%s\n", e->id);
}

/* Return the file after the requests of the write. */
static struct cgn_buf cordons_text(struct state_watch *s)
{
	struct cordons_text t = {.s = s};
	roster_each(&s->cordons, cordon_put, &t);
	cgn_list_each (it, &s->requests) {
		const struct state_request *rq = CGN_CONTAINER(it, struct state_request, link);
		if (rq->writing && rq->on && request_about(s, rq->id) == rq)
			cgn_buf_fmt(&t.text, "%s\n", rq->id);
	}
	if (t.text.n == 0)
		cgn_buf_putz(&t.text, "\n"); /* Without it the next start warns of a file that was emptied. */
	return t.text;
}

static void cordons_next(struct state_files *f);

static bool cordons_are_busy(const struct state_files *f)
{
	return f->telling || statefile_is_busy(f->cordons);
}

static void cordons_done(void *user, const struct statefile_result *r)
{
	struct state_files *f = user;
	f->telling = true;
	cgn_list_each (it, &f->s->requests) {
		struct state_request *rq = CGN_CONTAINER(it, struct state_request, link);
		if (!rq->writing)
			continue;
		rq->writing = false;
		if (r->err.code == CGN_FINE)
			state_cordon_seen(f->s, rq->id, rq->on);
		else
			state_files_failed(rq, &r->err);
		state_request_ready(f->s, rq);
	}
	f->telling = false;
	cordons_next(f);
}

/* Begin to write the cordons that wait, unless a write is under way: its end leads here again. */
static void cordons_next(struct state_files *f)
{
	bool waits = false;
	if (cordons_are_busy(f))
		return;
	cgn_list_each (it, &f->s->requests) {
		struct state_request *rq = CGN_CONTAINER(it, struct state_request, link);
		rq->writing = rq->id[0] != '\0' && !rq->ready;
		waits = waits || rq->writing;
	}
	if (waits)
		statefile_change(f->cordons,
			&(struct statefile_change){.text = cordons_text(f->s),
				.mode = 0644,
				.done = cordons_done,
				.user = f});
}

void state_files_cordon(struct state_files *f, struct state_watch *s, struct state_request *rq)
{
	struct cgn_err err;
	bool may = state_files_hold(f, s, &err);
	bool is_on = roster_find(&s->cordons, rq->id) != NULL;
	rq->err = (struct cgn_err){.code = CGN_FINE};
	if (!may) {
		rq->err = err;
		state_request_ready(s, rq);
	} else if (rq->on && !is_on && s->cordons.n >= STATE_MAX_NODES) {
		(void)CGN_FAIL_AS(&rq->err, CGN_OVERLOADED, "%d cordons are kept already", STATE_MAX_NODES);
		state_request_ready(s, rq);
	} else if (is_on == rq->on && !cordons_are_busy(f)) {
		state_request_ready(s, rq);
	} else {
		cordons_next(f);
	}
}

void state_files_close(struct state_files *f)
{
	statefile_close(&f->cordons, NULL);
	for (size_t d = 0; d < STATE_DOCUMENTS; d++)
		statefile_close(&f->documents[d].file, NULL);
}
