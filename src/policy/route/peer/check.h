/* SPDX-License-Identifier: Apache-2.0 */
/* peer: the rules of the settings of [peers]. Pure. */
#pragma once
#include "base/core/err.h"

struct config;

/* CGN_INVALID: |err| names the key and what it must be. */
CGN_RC peer_check_config(const struct config *c, struct cgn_err *err);
