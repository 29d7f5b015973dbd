-- functions/25_windows: boundaries of hours, days and weeks where clocks are changed. All zones against zoneinfo: test_windows.py.
select no_plan();

-- All times are UTC, but for the start of the window, which is local.
create function test.windows(p_about text, p_cases text) returns setof text language plpgsql as $$
declare
    v_case text[];
begin
    for v_case in select regexp_split_to_array(trim(l), '\s*\|\s*') from regexp_split_to_table(p_cases, E'\n') l where l ~ '\S' loop
        return next tap.is(format('%s to %s', w.window_start at time zone 'UTC', w.window_end at time zone 'UTC'), format('%s to %s', v_case[6]::timestamp, v_case[7]::timestamp),
            format('%s: %s at %s, %s', p_about, v_case[1], concat_ws(' ', nullif(v_case[3], '-'), v_case[4]), v_case[5]))
        from switchboard.admission_window(v_case[1], v_case[2], v_case[4], nullif(v_case[3], '-'), (v_case[5] || 'Z')::timestamptz) w;
    end loop;
end
$$;

-- period | zone | weekday | start | instant | window, from and to
select test.windows('no change near', $$
    hour | UTC           | -   | 00:00 | 2026-03-02 12:00          | 2026-03-02 12:00 | 2026-03-02 13:00
    hour | UTC           | -   | 17:20 | 2026-03-02 12:19:59.999999 | 2026-03-02 11:20 | 2026-03-02 12:20
    hour | UTC           | -   | 17:20 | 2026-03-02 12:20          | 2026-03-02 12:20 | 2026-03-02 13:20
    hour | Asia/Kolkata  | -   | 00:00 | 2026-03-02 12:29          | 2026-03-02 11:30 | 2026-03-02 12:30
    hour | Pacific/Chatham | - | 00:30 | 2026-03-02 12:40          | 2026-03-02 11:45 | 2026-03-02 12:45
    day  | UTC           | -   | 00:00 | 2026-03-02 23:59:30       | 2026-03-02 00:00 | 2026-03-03 00:00
    day  | UTC           | -   | 00:00 | 2026-03-03 00:01          | 2026-03-03 00:00 | 2026-03-04 00:00
    day  | UTC           | -   | 23:59 | 2026-03-03 00:01          | 2026-03-02 23:59 | 2026-03-03 23:59
    day  | Europe/Berlin | -   | 09:00 | 2026-01-15 07:59:59       | 2026-01-14 08:00 | 2026-01-15 08:00
    day  | Europe/Berlin | -   | 09:00 | 2026-01-15 08:00          | 2026-01-15 08:00 | 2026-01-16 08:00
    day  | Europe/Berlin | -   | 09:00 | 2026-07-15 07:00          | 2026-07-15 07:00 | 2026-07-16 07:00
    day  | Europe/Berlin | -   | 09:00 | 2026-07-15 06:59:59       | 2026-07-14 07:00 | 2026-07-15 07:00
    day  | Asia/Tokyo    | -   | 00:00 | 2028-02-29 14:59          | 2028-02-28 15:00 | 2028-02-29 15:00
    day  | America/New_York | - | 00:00 | 2199-12-31 12:00         | 2199-12-31 05:00 | 2200-01-01 05:00
    week | UTC           | Mon | 00:00 | 2026-03-04 12:00          | 2026-03-02 00:00 | 2026-03-09 00:00
    week | UTC           | Tue | 00:00 | 2026-03-04 12:00          | 2026-03-03 00:00 | 2026-03-10 00:00
    week | UTC           | Wed | 00:00 | 2026-03-04 12:00          | 2026-03-04 00:00 | 2026-03-11 00:00
    week | UTC           | Wed | 12:01 | 2026-03-04 12:00          | 2026-02-25 12:01 | 2026-03-04 12:01
    week | UTC           | Thu | 00:00 | 2026-03-04 12:00          | 2026-02-26 00:00 | 2026-03-05 00:00
    week | UTC           | Fri | 00:00 | 2026-03-04 12:00          | 2026-02-27 00:00 | 2026-03-06 00:00
    week | UTC           | Sat | 00:00 | 2026-03-04 12:00          | 2026-02-28 00:00 | 2026-03-07 00:00
    week | UTC           | Sun | 00:00 | 2026-03-04 12:00          | 2026-03-01 00:00 | 2026-03-08 00:00
$$);
select test.windows('the weekday is the local one', $$
    week | Pacific/Kiritimati | Mon | 00:00 | 2026-03-01 09:59:59 | 2026-02-22 10:00 | 2026-03-01 10:00
    week | Pacific/Kiritimati | Mon | 00:00 | 2026-03-01 10:00    | 2026-03-01 10:00 | 2026-03-08 10:00
    week | Pacific/Kiritimati | Sun | 23:30 | 2026-03-01 09:30    | 2026-03-01 09:30 | 2026-03-08 09:30
    week | Pacific/Pago_Pago  | Mon | 00:00 | 2026-03-02 10:59:59 | 2026-02-23 11:00 | 2026-03-02 11:00
    week | Pacific/Pago_Pago  | Mon | 00:00 | 2026-03-02 11:00    | 2026-03-02 11:00 | 2026-03-09 11:00
    week | Pacific/Pago_Pago  | Sun | 23:30 | 2026-03-02 10:30    | 2026-03-02 10:30 | 2026-03-09 10:30
$$);

-- New York, 2026-03-08: at 07:00 UTC the clock goes from 02:00 to 03:00
select test.windows('a gap', $$
    hour | America/New_York | -   | 00:00 | 2026-03-08 06:59:59.999999 | 2026-03-08 06:00 | 2026-03-08 07:00
    hour | America/New_York | -   | 00:00 | 2026-03-08 07:00    | 2026-03-08 07:00 | 2026-03-08 08:00
    hour | America/New_York | -   | 00:30 | 2026-03-08 06:45    | 2026-03-08 06:30 | 2026-03-08 07:00
    hour | America/New_York | -   | 00:30 | 2026-03-08 07:00    | 2026-03-08 07:00 | 2026-03-08 07:30
    hour | America/New_York | -   | 00:30 | 2026-03-08 07:30    | 2026-03-08 07:30 | 2026-03-08 08:30
    day  | America/New_York | -   | 00:00 | 2026-03-08 12:00    | 2026-03-08 05:00 | 2026-03-09 04:00
    day  | America/New_York | -   | 01:59 | 2026-03-08 06:59    | 2026-03-08 06:59 | 2026-03-09 05:59
    day  | America/New_York | -   | 02:00 | 2026-03-08 06:59    | 2026-03-07 07:00 | 2026-03-08 07:00
    day  | America/New_York | -   | 02:30 | 2026-03-08 06:59    | 2026-03-07 07:30 | 2026-03-08 07:00
    day  | America/New_York | -   | 02:30 | 2026-03-08 07:00    | 2026-03-08 07:00 | 2026-03-09 06:30
    day  | America/New_York | -   | 02:30 | 2026-03-08 07:45    | 2026-03-08 07:00 | 2026-03-09 06:30
    day  | America/New_York | -   | 02:59 | 2026-03-08 07:00    | 2026-03-08 07:00 | 2026-03-09 06:59
    day  | America/New_York | -   | 03:00 | 2026-03-08 07:00    | 2026-03-08 07:00 | 2026-03-09 07:00
    day  | America/New_York | -   | 03:01 | 2026-03-08 07:00    | 2026-03-07 08:01 | 2026-03-08 07:01
    week | America/New_York | Sun | 02:30 | 2026-03-08 06:59    | 2026-03-01 07:30 | 2026-03-08 07:00
    week | America/New_York | Sun | 02:30 | 2026-03-08 07:00    | 2026-03-08 07:00 | 2026-03-15 06:30
    week | America/New_York | Mon | 00:00 | 2026-03-08 12:00    | 2026-03-02 05:00 | 2026-03-09 04:00
$$);
-- 2026-11-01: at 06:00 UTC it goes from 02:00 to 01:00
select test.windows('an overlap', $$
    hour | America/New_York | -   | 00:00 | 2026-11-01 05:00    | 2026-11-01 05:00 | 2026-11-01 07:00
    hour | America/New_York | -   | 00:00 | 2026-11-01 06:59    | 2026-11-01 05:00 | 2026-11-01 07:00
    hour | America/New_York | -   | 00:00 | 2026-11-01 07:00    | 2026-11-01 07:00 | 2026-11-01 08:00
    hour | America/New_York | -   | 00:30 | 2026-11-01 05:29    | 2026-11-01 04:30 | 2026-11-01 05:30
    hour | America/New_York | -   | 00:30 | 2026-11-01 06:10    | 2026-11-01 05:30 | 2026-11-01 07:30
    hour | America/New_York | -   | 00:30 | 2026-11-01 06:30    | 2026-11-01 05:30 | 2026-11-01 07:30
    day  | America/New_York | -   | 00:00 | 2026-11-01 12:00    | 2026-11-01 04:00 | 2026-11-02 05:00
    day  | America/New_York | -   | 01:00 | 2026-11-01 06:00    | 2026-11-01 05:00 | 2026-11-02 06:00
    day  | America/New_York | -   | 01:30 | 2026-11-01 05:29:59 | 2026-10-31 05:30 | 2026-11-01 05:30
    day  | America/New_York | -   | 01:30 | 2026-11-01 05:30    | 2026-11-01 05:30 | 2026-11-02 06:30
    day  | America/New_York | -   | 01:30 | 2026-11-01 06:10    | 2026-11-01 05:30 | 2026-11-02 06:30
    day  | America/New_York | -   | 01:30 | 2026-11-01 06:30    | 2026-11-01 05:30 | 2026-11-02 06:30
    day  | America/New_York | -   | 01:59 | 2026-11-01 06:00    | 2026-11-01 05:59 | 2026-11-02 06:59
    day  | America/New_York | -   | 02:00 | 2026-11-01 06:59    | 2026-10-31 06:00 | 2026-11-01 07:00
    week | America/New_York | Sun | 01:30 | 2026-11-01 05:29    | 2026-10-25 05:30 | 2026-11-01 05:30
    week | America/New_York | Sun | 01:30 | 2026-11-01 06:10    | 2026-11-01 05:30 | 2026-11-08 06:30
    week | America/New_York | Mon | 00:00 | 2026-11-01 12:00    | 2026-10-26 04:00 | 2026-11-02 05:00
$$);

select test.windows('midnight is skipped, or comes late', $$
    day  | America/Sao_Paulo | -  | 00:00 | 2018-11-04 02:59    | 2018-11-03 03:00 | 2018-11-04 03:00
    day  | America/Sao_Paulo | -  | 00:00 | 2018-11-04 03:00    | 2018-11-04 03:00 | 2018-11-05 02:00
    day  | America/Sao_Paulo | -  | 00:30 | 2018-11-04 03:00    | 2018-11-04 03:00 | 2018-11-05 02:30
    week | America/Sao_Paulo | Sun | 00:00 | 2018-11-04 03:00   | 2018-11-04 03:00 | 2018-11-11 02:00
    day  | America/Sao_Paulo | -  | 00:00 | 2018-02-18 02:30    | 2018-02-17 02:00 | 2018-02-18 03:00
    day  | America/Sao_Paulo | -  | 23:30 | 2018-02-18 01:29    | 2018-02-17 01:30 | 2018-02-18 01:30
    day  | America/Sao_Paulo | -  | 23:30 | 2018-02-18 02:15    | 2018-02-18 01:30 | 2018-02-19 02:30
    week | America/Sao_Paulo | Sat | 23:30 | 2018-02-18 02:15   | 2018-02-18 01:30 | 2018-02-25 02:30
    day  | Asia/Beirut       | -  | 00:00 | 2022-03-26 22:00    | 2022-03-26 22:00 | 2022-03-27 21:00
    day  | America/Havana    | -  | 00:00 | 2022-03-13 05:00    | 2022-03-13 05:00 | 2022-03-14 04:00
    day  | Cuba              | -  | 00:00 | 2022-11-06 05:10    | 2022-11-06 04:00 | 2022-11-07 05:00
    day  | Cuba              | -  | 00:30 | 2022-11-06 05:10    | 2022-11-06 04:30 | 2022-11-07 05:30
    day  | America/Nuuk      | -  | 22:30 | 2023-03-26 01:00    | 2023-03-26 01:00 | 2023-03-27 00:30
$$);
select test.windows('half an hour, two hours, 44 minutes and a half', $$
    hour | Australia/Lord_Howe | - | 00:45 | 2026-04-04 15:20   | 2026-04-04 14:45 | 2026-04-04 16:15
    hour | Australia/Lord_Howe | - | 00:00 | 2026-04-04 15:20   | 2026-04-04 14:00 | 2026-04-04 15:30
    day  | Australia/Lord_Howe | - | 01:45 | 2026-04-04 15:14   | 2026-04-04 14:45 | 2026-04-05 15:15
    hour | Australia/Lord_Howe | - | 00:15 | 2026-10-03 15:29   | 2026-10-03 14:45 | 2026-10-03 15:30
    hour | Australia/Lord_Howe | - | 00:15 | 2026-10-03 15:30   | 2026-10-03 15:30 | 2026-10-03 16:15
    day  | Australia/Lord_Howe | - | 02:15 | 2026-10-03 15:30   | 2026-10-03 15:30 | 2026-10-04 15:15
    hour | Antarctica/Troll  | -  | 00:00 | 2026-03-29 01:00    | 2026-03-29 01:00 | 2026-03-29 02:00
    hour | Antarctica/Troll  | -  | 00:30 | 2026-03-29 01:10    | 2026-03-29 01:00 | 2026-03-29 01:30
    hour | Antarctica/Troll  | -  | 00:00 | 2026-10-25 00:59    | 2026-10-25 00:00 | 2026-10-25 03:00
    hour | Antarctica/Troll  | -  | 00:00 | 2026-10-25 01:30    | 2026-10-25 00:00 | 2026-10-25 03:00
    hour | Antarctica/Troll  | -  | 00:00 | 2026-10-25 03:00    | 2026-10-25 03:00 | 2026-10-25 04:00
    day  | Antarctica/Troll  | -  | 02:30 | 2026-10-25 02:29    | 2026-10-25 00:30 | 2026-10-26 02:30
    hour | Africa/Monrovia   | -  | 00:00 | 1972-01-06 13:00    | 1972-01-06 12:44:30 | 1972-01-06 13:44:30
    day  | Africa/Monrovia   | -  | 00:30 | 1972-01-07 00:44:30 | 1972-01-07 00:44:30 | 1972-01-08 00:30
$$);
-- 2011-12-30, a Friday, was skipped: at 10:00 UTC Thursday ended and Saturday began. Kwajalein skipped 1993-08-21, a Saturday.
select test.windows('a skipped day', $$
    hour | Pacific/Apia      | -  | 00:00 | 2011-12-30 09:59:59.999999 | 2011-12-30 09:00 | 2011-12-30 10:00
    hour | Pacific/Apia      | -  | 00:00 | 2011-12-30 10:00    | 2011-12-30 10:00 | 2011-12-30 11:00
    hour | Pacific/Apia      | -  | 00:30 | 2011-12-30 09:45    | 2011-12-30 09:30 | 2011-12-30 10:00
    hour | Pacific/Apia      | -  | 00:30 | 2011-12-30 10:00    | 2011-12-30 10:00 | 2011-12-30 10:30
    day  | Pacific/Apia      | -  | 00:00 | 2011-12-30 09:59    | 2011-12-29 10:00 | 2011-12-30 10:00
    day  | Pacific/Apia      | -  | 00:00 | 2011-12-30 10:00    | 2011-12-30 10:00 | 2011-12-31 10:00
    day  | Pacific/Apia      | -  | 05:00 | 2011-12-30 09:59    | 2011-12-29 15:00 | 2011-12-30 10:00
    day  | Pacific/Apia      | -  | 05:00 | 2011-12-30 10:00    | 2011-12-30 10:00 | 2011-12-30 15:00
    day  | Pacific/Apia      | -  | 05:00 | 2011-12-30 15:00    | 2011-12-30 15:00 | 2011-12-31 15:00
    week | Pacific/Apia      | Fri | 12:00 | 2011-12-30 09:59   | 2011-12-23 22:00 | 2011-12-30 10:00
    week | Pacific/Apia      | Fri | 12:00 | 2011-12-30 10:00   | 2011-12-30 10:00 | 2012-01-05 22:00
    week | Pacific/Apia      | Thu | 12:00 | 2011-12-30 10:00   | 2011-12-29 22:00 | 2012-01-04 22:00
    week | Pacific/Apia      | Sat | 00:00 | 2011-12-30 10:00   | 2011-12-30 10:00 | 2012-01-06 10:00
    day  | Pacific/Kwajalein | -  | 06:00 | 1993-08-21 11:59    | 1993-08-20 18:00 | 1993-08-21 12:00
    day  | Pacific/Kwajalein | -  | 06:00 | 1993-08-21 12:00    | 1993-08-21 12:00 | 1993-08-21 18:00
    week | Pacific/Kwajalein | Sat | 06:00 | 1993-08-21 12:00   | 1993-08-21 12:00 | 1993-08-27 18:00
$$);

-- zones that are abbreviations as well, whatever the session's zone and its abbreviations say
set timezone = 'Europe/Moscow';  -- where MST was Moscow's summer time
set timezone_abbreviations = 'Australia';
select test.windows('a zone, not an abbreviation', $$
    day  | CET               | -  | 00:00 | 2026-07-01 12:00    | 2026-06-30 22:00 | 2026-07-01 22:00
    day  | MET               | -  | 00:00 | 2026-07-01 12:00    | 2026-06-30 22:00 | 2026-07-01 22:00
    day  | EET               | -  | 00:00 | 2026-07-01 12:00    | 2026-06-30 21:00 | 2026-07-01 21:00
    day  | WET               | -  | 00:00 | 2026-07-01 12:00    | 2026-06-30 23:00 | 2026-07-01 23:00
    day  | MST               | -  | 00:00 | 2026-07-01 12:00    | 2026-07-01 07:00 | 2026-07-02 07:00
    day  | EST               | -  | 00:00 | 2026-07-01 12:00    | 2026-07-01 05:00 | 2026-07-02 05:00
    day  | EST5EDT           | -  | 00:00 | 2026-07-01 12:00    | 2026-07-01 04:00 | 2026-07-02 04:00
    day  | europe/berlin     | -  | 00:00 | 2026-07-01 12:00    | 2026-06-30 22:00 | 2026-07-01 22:00
$$);
begin;
select switchboard.admission_window('day', 'CET', '00:00', null, '2026-03-02Z'), switchboard.first_instant('2026-03-02', 'CET') \g /dev/null
select is(current_setting('TimeZone'), 'Europe/Moscow', 'the session''s own zone is as before');
commit;
select is(test.outcome($$ select switchboard.admission_window('day', 'Mars/Olympus', '00:00', null, '2026-03-02Z') $$), '22023', 'a zone that PostgreSQL does not know');
select is(current_setting('TimeZone'), 'Europe/Moscow', 'after an error, too');
reset timezone;
reset timezone_abbreviations;

-- what is no window
select is(row(w.*)::text, '(,)', 'no window at ' || coalesce(t::text, 'NULL'))
    from unnest('{NULL,infinity,-infinity}'::timestamptz[]) t cross join lateral switchboard.admission_window('day', 'UTC', '00:00', null, t) w;
select is(test.outcome(format('select switchboard.admission_window(%L, %L, %L, %L, ''2026-03-02Z'')', p, z, s, d)), o, concat_ws(' ', 'refused:', p, z, s, d))
    from (values (null, 'UTC', '00:00', null, 'SB400'), ('year', 'UTC', '00:00', null, 'SB400'), ('day', 'UTC', null, null, 'SB400'), ('day', 'UTC', '25:00', null, '22008'),
        ('week', 'UTC', '00:00', null, 'SB400'), ('week', 'UTC', '00:00', 'Moon', 'SB400'), ('day', null, '00:00', null, '22023'), ('day', '', '00:00', null, '22023')) c(p, z, s, d, o);
select is((select provolatile::text || proparallel::text from pg_proc where oid = 'switchboard.admission_window'::regproc), 'iu', 'it is immutable, and not for parallel workers, who may not set TimeZone');

-- every zone, 1970 to 2200
create table test.every_window as
    select z.name, p.period, t.at, w.window_start, w.window_end
    from pg_timezone_names z, generate_series(timestamptz '1970-01-01 00:30Z', '2200-01-01Z', interval '11 months 3 days 5 hours') with ordinality t(at, n),
        (values (0, 'hour', null), (1, 'day', null), (2, 'week', 'Sun')) p(n, period, weekday), switchboard.admission_window(p.period, z.name, '02:30', p.weekday, t.at) w
    where z.name !~ '^(posix|right)/' and p.n = t.n % 3;
select cmp_ok((select count(*) from test.every_window), '>', 100000::bigint, 'windows of every zone');
select is_empty($$ select * from test.every_window where at < window_start or at >= window_end or window_start is null $$, 'each holds its instant');
select is_empty($$ select e.*, w.* from test.every_window e cross join lateral switchboard.admission_window(e.period, e.name, '02:30', case e.period when 'week' then 'Sun' end, e.window_end) w
    where extract(epoch from e.at)::bigint % 5 = 0 and w.window_start <> e.window_end $$, 'where it ends, the next begins');

-- known_zone
select is(switchboard.known_zone(n), z, 'known_zone: ' || coalesce(n, 'NULL'))
    from (values ('Europe/Berlin', 'Europe/Berlin'), ('eUROPE/bERLIN', 'Europe/Berlin'), ('utc', 'UTC'), ('etc/gmt+5', 'Etc/GMT+5'), ('EST5EDT', 'EST5EDT'), ('cet', 'CET'), ('CUBA', 'Cuba'),
        ('america/argentina/buenos_aires', 'America/Argentina/Buenos_Aires'), ('Mars/Olympus', null), ('PDT', null), ('EST5', null), ('FOO5', null), ('+02:00', null), ('2', null),
        ('localtime', null), ('LocalTime', null), ('posixrules', null), ('Factory', null), ('posix/UTC', null), ('right/UTC', null), ('posix/Europe/Berlin', null),
        ('', null), (' UTC', null), ('Europe/Berl%', null), ('Europe', null), ('../UTC', null), (null, null)) c(n, z);
select is((select array_agg(name) from pg_timezone_names where name !~ '^(posix|right)/' and name not in ('localtime', 'posixrules', 'Factory')
    and extract(epoch from utc_offset)::int % 7 = 0 and switchboard.known_zone(upper(name)) is distinct from name), null, 'what PostgreSQL lists is known');

select * from finish();
