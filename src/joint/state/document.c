/* SPDX-License-Identifier: Apache-2.0 */
/* document: the policy document, kept in a file beside the cordons, where there is no etcd. Read at the
 * start; afterwards this router is the only one that writes it. */
#include <errno.h>
#include <unistd.h>

#include "base/log/log.h"
#include "io/disk/disk.h"
#include "joint/state/state_priv.h"

CGN_RC document_open(struct state_watch *s, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	struct cgn_err why;
	cgn_buf_fmt(&path, "%s/%s.policy", s->state_dir, s->cluster);
	s->policy_where = cgn_str_dupz(cgn_buf_view(&path));
	if (path.bad || s->policy_where == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the policy document");
	cgn_rc rc = disk_read_file(s->policy_where, STATE_MAX_POLICY, &s->policy, &why);
	if (cgn_ok(rc))
		return rc;
	s->policy.n = 0;
	if (rc.code != CGN_NOT_FOUND)
		cgn_log(ERROR, "state.policy_unreadable", F_STR("why", why.msg),
			F_STR("then", "the configuration's policy counts"));
	return CGN_OK;
}

static CGN_RC remove_file(const struct state_watch *s, struct cgn_err *err)
{
	if (unlink(s->policy_where) == 0 || errno == ENOENT)
		return CGN_OK;
	return CGN_FAIL(err, STORAGE, "%s can't be removed: %s", s->policy_where, strerror(errno));
}

void document_change(struct state_watch *s, struct state_request *rq)
{
	struct cgn_str text = {rq->text, rq->text_bytes};
	rq->err = (struct cgn_err){.code = CGN_FINE};
	if (cgn_ok(rq->on ? state_file_write(s, s->policy_where, text, &rq->err) : remove_file(s, &rq->err)))
		state_policy_seen(s, text);
	state_request_ready(s, rq);
}
