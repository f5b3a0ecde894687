/* SPDX-License-Identifier: Apache-2.0 */
#include "base/unlikely/unlikely.h"

bool (*const unlikely_choice)(enum unlikely place) = NULL;
