# pg_mip: make && make install (PG_CONFIG selects the server); see ./run for everything else

MODULE_big = pg_mip
OBJS = \
	src/pg_mip.o \
	src/books.o \
	src/chain.o \
	src/commit.o \
	src/deadlock.o \
	src/durable.o \
	src/enable.o \
	src/eviction.o \
	src/expiry.o \
	src/family.o \
	src/family_lock.o \
	src/finish.o \
	src/functions.o \
	src/gid.o \
	src/guard.o \
	src/handover.o \
	src/horizon.o \
	src/insert.o \
	src/instance.o \
	src/locks.o \
	src/logical.o \
	src/logical_decode.o \
	src/map.o \
	src/mipt.o \
	src/outsider.o \
	src/overlay.o \
	src/plans.o \
	src/push.o \
	src/queue.o \
	src/sibling.o \
	src/sites.o \
	src/stats.o \
	src/stop.o \
	src/tableam.o \
	src/tableam_read.o \
	src/tableam_write.o \
	src/version.o \
	src/waits.o \
	src/wal.o

EXTENSION = pg_mip
DATA = sql/pg_mip--0.1.sql

# the regression and isolation suites need a server with
# shared_preload_libraries = 'pg_mip' (./run test starts one)
REGRESS = $(patsubst test/sql/%.sql,%,$(sort $(wildcard test/sql/*.sql)))
REGRESS_OPTS = --inputdir=test --load-extension=pg_mip
ISOLATION = $(patsubst test/specs/%.spec,%,$(sort $(wildcard test/specs/*.spec)))
ISOLATION_OPTS = --inputdir=test --load-extension=pg_mip
TAP_TESTS = $(if $(wildcard test/t/*.pl),1)

PG_CFLAGS += -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers $(if $(WERROR),-Werror)

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# no --enable-depend in distributions' builds
$(OBJS): $(wildcard src/*.h)
