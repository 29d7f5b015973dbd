-- The test clock: setting switchboard.test_now of this session. It stands still between two calls of test.pass().

create function test.at(p_time timestamptz) returns timestamptz language sql as $$
    select set_config('switchboard.test_now', p_time::text, false)::timestamptz
$$;

-- Moves the clock on. A session that had no test clock starts on Monday 2026-03-02, 12:00 UTC.
create function test.pass(p_span interval) returns timestamptz language sql as $$
    select test.at(coalesce(nullif(current_setting('switchboard.test_now', true), ''), '2026-03-02T12:00:00Z')::timestamptz + p_span)
$$;

create function test.stop_clock() returns timestamptz language sql as $$ select test.pass('0 s') $$;
create function test.real_time() returns void language sql as $$ select set_config('switchboard.test_now', '', false) $$;
