/* SPDX-License-Identifier: Apache-2.0 */
/* cordons: kept in a file, one id per line, where there is no etcd. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log/log.h"
#include "io/disk/disk.h"
#include "joint/state/state_priv.h"

#define CORDONS_MAX_BYTES ((size_t)1024 * 1024)

static void read_lines(struct state_watch *s, struct cgn_str text)
{
	char id[PROTO_MAX_ID + 1];
	while (text.p != NULL) {
		struct cgn_str line = cgn_str_split(&text, '\n');
		if (line.n == 0)
			continue;
		if (!proto_node_id_ok(line) || s->cordons.n >= STATE_MAX_NODES) {
			cgn_log(WARN, "state.cordon_ignored", F_STR("file", s->cordon_file),
				F_STRN("line", line));
			continue;
		}
		(void)cgn_str_copyz(id, sizeof id, line);
		if (roster_find(&s->cordons, id) == NULL)
			(void)roster_add(&s->cordons, id);
	}
}

/* Without a cordon or a policy nothing need be written, so a folder that can't be written is no reason not to
 * start. */
static void warn_unless_writable(struct state_watch *s)
{
	struct cgn_err err;
	if (!cgn_ok(disk_mkdirs(s->state_dir, 0755, &err)))
		cgn_log(WARN, "state.dir_not_writable", F_STR("dir", s->state_dir), F_STR("why", err.msg),
			F_STR("then", "cordons and policies can't be kept"));
	else if (access(s->state_dir, W_OK) != 0)
		cgn_log(WARN, "state.dir_not_writable", F_STR("dir", s->state_dir),
			F_STR("why", strerror(errno)), F_STR("then", "cordons and policies can't be kept"));
}

CGN_RC cordons_open(struct state_watch *s, const struct config *cfg, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct cgn_err why;
	cgn_buf_fmt(&path, "%s/%s.cordons", cfg->cluster.state_dir, s->cluster);
	s->state_dir = cgn_str_dupz(cgn_str_of(cfg->cluster.state_dir));
	s->cordon_file = cgn_str_dupz(cgn_buf_view(&path));
	if (path.bad || s->state_dir == NULL || s->cordon_file == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the cordons");
	warn_unless_writable(s);
	cgn_rc rc = disk_read_file(s->cordon_file, CORDONS_MAX_BYTES, &text, &why);
	if (!cgn_ok(rc) && rc.code != CGN_NOT_FOUND)
		cgn_log(ERROR, "state.cordons_unreadable", F_STR("why", why.msg),
			F_STR("then", "nodes that were cordoned are in use"));
	read_lines(s, cgn_buf_view(&text));
	return document_open(s, err);
}

struct writer {
	struct cgn_buf text;
	const struct state_request *but; /* what changes */
};

static void put_line(void *arg, struct roster_entry *e)
{
	struct writer *w = arg;
	if (strcmp(e->id, w->but->id) != 0)
		cgn_buf_fmt(&w->text, "%s\n", e->id);
}

CGN_RC state_file_write(const struct state_watch *s, const char *file, struct cgn_str text,
	struct cgn_err *err)
{
	struct cgn_err why;
	cgn_rc rc = disk_mkdirs(s->state_dir, 0755, &why);
	if (cgn_ok(rc))
		rc = disk_write_file_atomic(file, text, 0644, &why);
	if (cgn_ok(rc))
		return rc;
	return CGN_FAIL(err, STORAGE,
		"it can't be kept: %s; set cluster.state_dir to a folder that the router may write", why.msg);
}

static CGN_RC write_lines(struct state_watch *s, const struct state_request *rq, struct cgn_err *err)
{
	struct writer w = {.but = rq};
	roster_each(&s->cordons, put_line, &w);
	if (rq->on)
		cgn_buf_fmt(&w.text, "%s\n", rq->id);
	cgn_rc rc = w.text.bad ? CGN_FAIL(err, NO_MEMORY, "no memory for the cordons")
			       : state_file_write(s, s->cordon_file, cgn_buf_view(&w.text), err);
	cgn_buf_fini(&w.text);
	return rc;
}

void cordons_change(struct state_watch *s, struct state_request *rq)
{
	bool is_on = roster_find(&s->cordons, rq->id) != NULL;
	rq->err = (struct cgn_err){.code = CGN_FINE};
	if (is_on != rq->on && rq->on && s->cordons.n >= STATE_MAX_NODES)
		(void)CGN_FAIL_AS(&rq->err, CGN_OVERLOADED, "%d cordons are kept already", STATE_MAX_NODES);
	else if (is_on != rq->on && cgn_ok(write_lines(s, rq, &rq->err)))
		state_cordon_seen(s, rq->id, rq->on);
	state_request_ready(s, rq);
}

void cordons_close(struct state_watch *s)
{
	free(s->state_dir);
	free(s->cordon_file);
}
