/* SPDX-License-Identifier: Apache-2.0 */
/* files: cordons (one id per line) and the documents of operators in cluster.state_dir, for backends without etcd.
 * All are read at the start; afterwards only the router writes them that holds the place (place.c). The thread pool
 * writes: the loop waits for no disk. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log/log.h"
#include "io/os/disk/disk.h"
#include "joint/cluster/state/state_priv.h"

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
			cgn_log_limited(WARN, "state.cordon_ignored", F_STR("file", f->cordons),
				F_STRN("line", line));
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
		cgn_log(WARN, "state.cordons_empty", F_STR("file", f->cordons),
			F_STR("then",
				"no node counts as cordoned; cordon them again if the file was emptied"));
}

/* Return true if |text| is what the file has; no file: nothing. */
static bool cordons_read(const struct state_files *f, struct cgn_buf *text)
{
	struct cgn_err why;
	cgn_rc rc = disk_read_file(f->cordons, CORDONS_MAX_BYTES, text, &why);
	if (cgn_ok(rc))
		warn_if_emptied(f, text);
	if (cgn_ok(rc) || rc.code == CGN_NOT_FOUND)
		return true;
	cgn_log(ERROR, "state.cordons_unreadable", F_STR("why", why.msg),
		F_STR("then", "nodes that were cordoned are in use"));
	return false;
}

/* Log a warning only: without a cordon or a policy there is nothing to write. */
static void warn_unless_writable(const struct state_files *f)
{
	struct cgn_err err;
	if (!cgn_ok(disk_mkdirs(f->dir, 0755, &err)))
		cgn_log(WARN, "state.dir_not_writable", F_STR("dir", f->dir), F_STR("why", err.msg),
			F_STR("then", "cordons, policies and wanted models cannot be stored"));
	else if (access(f->dir, W_OK) != 0)
		cgn_log(WARN, "state.dir_not_writable", F_STR("dir", f->dir), F_STR("why", strerror(errno)),
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

static CGN_RC document_open(const struct state_files *f, struct state_watch *s, enum state_document d,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	struct state_text *t = &s->documents[d];
	cgn_buf_fmt(&path, "%s/%s.%s", f->dir, s->cluster, state_document_name(d));
	t->where = cgn_str_dupz(cgn_buf_view(&path));
	if (path.bad || t->where == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the documents of operators");
	if (!state_document_read(t->where, d, &t->text))
		t->text.n = 0;
	return CGN_OK;
}

CGN_RC state_files_open(struct state_files *f, struct state_watch *s, const struct config *cfg,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	cgn_buf_fmt(&path, "%s/%s.cordons", cfg->cluster.state_dir, s->cluster);
	f->dir = cgn_str_dupz(cgn_str_of(cfg->cluster.state_dir));
	f->cordons = cgn_str_dupz(cgn_buf_view(&path));
	if (path.bad || f->dir == NULL || f->cordons == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the cordons");
	warn_unless_writable(f);
	warn_unless_own(s);
	(void)cordons_read(f, &text);
	cordons_take(f, s, cgn_buf_view(&text), cordon_add);
	for (size_t d = 0; d < STATE_DOCUMENTS; d++)
		CGN_TRY(document_open(f, s, (enum state_document)d, err));
	return CGN_OK;
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

CGN_RC state_file_write(const char *dir, const char *file, struct cgn_str text, mode_t mode,
	struct cgn_err *err)
{
	struct cgn_err why;
	cgn_rc rc = disk_mkdirs(dir, 0755, &why);
	if (cgn_ok(rc))
		rc = disk_write_file_atomic(file, text, mode, &why);
	if (cgn_ok(rc))
		return rc;
	return CGN_FAIL(err, STORAGE,
		"cannot be stored: %s; set cluster.state_dir to a folder that the router may write", why.msg);
}

/* ---- cordons ---- */

/* Cordons that are written together, on the thread pool: the loop waits for no disk. */
struct cordons_write {
	struct state_files *f; /* NULL: the backend was closed meanwhile, and |rq| is gone. */
	struct state_watch *s;
	struct state_request **rq;
	size_t n;
	struct cgn_buf text;
	char *dir, *file; /* owned */
	int place;        /* Holds the place until the write is over; -1: not held. */
	cgn_rc rc;
	struct cgn_err err;
};

static void cordons_free(struct cordons_write *w)
{
	if (w == NULL)
		return;
	cgn_buf_fini(&w->text);
	state_place_drop(w->place);
	free(w->rq);
	free(w->dir);
	free(w->file);
	free(w);
}

/* Find the last request of the write about |id|; NULL: there is none. */
static const struct state_request *request_about(const struct cordons_write *w, const char *id)
{
	for (size_t i = w->n; i-- > 0;)
		if (strcmp(w->rq[i]->id, id) == 0)
			return w->rq[i];
	return NULL;
}

static void cordon_put(void *arg, struct roster_entry *e)
{
	struct cordons_write *w = arg;
	if (request_about(w, e->id) == NULL)
		cgn_buf_fmt(&w->text, "%s\n", e->id);
}

static void cordons_put(struct cordons_write *w)
{
	roster_each(&w->s->cordons, cordon_put, w);
	for (size_t i = 0; i < w->n; i++)
		if (w->rq[i]->on && request_about(w, w->rq[i]->id) == w->rq[i])
			cgn_buf_fmt(&w->text, "%s\n", w->rq[i]->id);
	if (w->text.n == 0)
		cgn_buf_putz(&w->text,
			"\n"); /* Without it the next start warns of a file that was emptied. */
}

static void cordons_run(void *arg)
{
	struct cordons_write *w = arg;
	w->rc = state_file_write(w->dir, w->file, cgn_buf_view(&w->text), 0644, &w->err);
}

static void cordons_next(struct state_files *f, struct state_watch *s);

static void cordons_done(void *arg)
{
	struct cordons_write *w = arg;
	struct state_files *f = w->f;
	struct state_watch *s = w->s;
	for (size_t i = 0; f != NULL && i < w->n; i++) {
		w->rq[i]->err = w->err;
		if (cgn_ok(w->rc))
			state_cordon_seen(s, w->rq[i]->id, w->rq[i]->on);
		state_request_ready(s, w->rq[i]);
	}
	cordons_free(w);
	if (f == NULL)
		return;
	f->writing = NULL;
	cordons_next(f, s);
}

/* Return the write of all requests that wait; NULL: no memory. */
static struct cordons_write *cordons_collect(struct state_files *f, struct state_watch *s, size_t n)
{
	struct cordons_write *w = CGN_NEW(struct cordons_write);
	*w = (struct cordons_write){.f = f,
		.s = s,
		.place = state_place_share(&s->place),
		.rq = calloc(n, sizeof(struct state_request *)),
		.dir = cgn_str_dupz(cgn_str_of(f->dir)),
		.file = cgn_str_dupz(cgn_str_of(f->cordons))};
	cgn_list_each (it, &s->requests) {
		struct state_request *rq = CGN_CONTAINER(it, struct state_request, link);
		if (w->rq != NULL && rq->id[0] != '\0' && !rq->ready)
			w->rq[w->n++] = rq;
	}
	if (w->rq != NULL)
		cordons_put(w);
	if (w->rq != NULL && w->dir != NULL && w->file != NULL && !w->text.bad)
		return w;
	cordons_free(w);
	return NULL;
}

/* Begin to write the cordons that wait, unless a write is under way: its end leads here again. */
static void cordons_next(struct state_files *f, struct state_watch *s)
{
	size_t n = 0;
	cgn_list_each (it, &s->requests) {
		const struct state_request *rq = CGN_CONTAINER(it, struct state_request, link);
		n += rq->id[0] != '\0' && !rq->ready;
	}
	if (n == 0 || f->writing != NULL)
		return;
	f->writing = cordons_collect(f, s, n);
	if (f->writing != NULL) {
		struct cordons_write *w = f->writing;
		if (cgn_ok(cgn_loop_write(s->loop, cordons_run, cordons_done, w)))
			return;
		cordons_run(w);
		cordons_done(w);
		return;
	}
	cgn_list_each (it, &s->requests) {
		struct state_request *rq = CGN_CONTAINER(it, struct state_request, link);
		if (rq->id[0] == '\0' || rq->ready)
			continue;
		(void)CGN_FAIL(&rq->err, NO_MEMORY, "no memory for the cordons");
		state_request_ready(s, rq);
	}
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
	} else if (is_on == rq->on && f->writing == NULL) {
		state_request_ready(s, rq);
	} else {
		cordons_next(f, s);
	}
}

void state_files_close(struct state_files *f)
{
	if (f->writing != NULL)
		f->writing->f = NULL;
	state_document_writes_leave(f);
	free(f->dir);
	free(f->cordons);
}
