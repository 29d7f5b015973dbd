-- Windows: the hour, day or week of a local clock that holds an instant (SPEC-0030).
--
-- A window begins at a label: every hour at xx:MM, every day at HH:MM, or every week on a weekday at HH:MM.
-- The boundary of a label is the first instant at which the local clock shows it or something later: the end of
-- a gap that swallows it, the first of two times in an overlap. So windows tile, an hour that repeats in autumn
-- is one long window, and labels that were all skipped (by an hour in spring, by a day in Apia) share one boundary.
--
-- The local clock is the setting TimeZone, which PostgreSQL restores at the end of these functions. It is not
-- AT TIME ZONE, which takes CET for the abbreviation, without summer time, and depends on the session from
-- PostgreSQL 18 on. A cast of a label gives the later instant of an overlap, and shifts what lies in a gap. It is
-- believed when the clock shows the label then, and 32 hours before it showed what is 32 hours less. That is
-- enough: clocks are less than 16 hours off UTC, so no earlier one can have shown the label, and none was ever
-- changed there and back within 32 hours (167 at the least since 1970; py/tests/test_windows.py looks).

create or replace function switchboard.admission_window(
    p_period text, p_tz text, p_start text, p_weekday text, p_at timestamptz, out window_start timestamptz, out window_end timestamptz)
language plpgsql immutable security definer set search_path = switchboard, pg_temp set timezone = 'UTC'
as $$
declare
    v_back  interval := interval '32 hours';
    v_step  interval := case p_period when 'hour' then interval '1 hour' when 'day' then interval '1 day' when 'week' then interval '7 days' end;
    v_label timestamp;
begin
    if p_at is null or not isfinite(p_at) then
        return;
    end if;
    p_tz := set_config('TimeZone', coalesce(p_tz, ''), true);
    -- the last label that the clock has passed; 1900 began on a Monday
    v_label := date_bin(v_step, p_at::timestamp, timestamp '1900-01-01' + p_start::time
        + case when p_period = 'week' then array_position(array['Mon', 'Tue', 'Wed', 'Thu', 'Fri', 'Sat', 'Sun'], p_weekday) - 1 else 0 end * interval '1 day');
    if v_label is null then
        perform refuse_argument('window', 'must have a period (hour, day or week), a start (HH:MM) and, for a week, a weekday (Mon to Sun)');
    end if;
    loop  -- twice; more often where the clock was put back and had passed later labels before
        window_start := window_end;
        window_end := v_label::timestamptz;
        if window_end::timestamp <> v_label or (window_end - v_back)::timestamp <> v_label - v_back then
            window_end := first_instant(v_label, p_tz);
        end if;
        exit when window_end > p_at;
        v_label := v_label + v_step;
    end loop;
end $$;
comment on function switchboard.admission_window(text, text, text, text, timestamptz) is
'The window that holds p_at: window_start <= p_at < window_end. p_period: hour, day or week; p_tz: a zone, whose local clock counts; p_start: HH:MM, of an hour only the minutes count; p_weekday: Mon to Sun for a week, else NULL. NULL for no or no finite p_at. Errors: 22023 for a zone that PostgreSQL does not know (any more), invalid_argument.';

create or replace function switchboard.first_instant(p_label timestamp, p_tz text) returns timestamptz
language plpgsql immutable set search_path = switchboard, pg_temp set timezone = 'UTC'
as $$
declare
    v_utc   timestamptz := p_label::timestamptz;
    v_from  integer := -57600;  -- all in seconds from v_utc: 16 hours before it no clock has shown the label, 16 hours after it every clock has
    v_until integer;
    v_ahead integer;
    v_same  integer;
    v_half  integer;
begin
    p_tz := set_config('TimeZone', coalesce(p_tz, ''), true);
    loop  -- once for each stretch in which the clock is not changed: from v_from to before v_until it is v_ahead of UTC
        v_ahead := extract(epoch from (v_utc + v_from * interval '1 second')::timestamp - p_label) - v_from;
        v_same := v_from;
        v_until := 57601;
        while v_until - v_same > 1 loop
            v_half := (v_same + v_until) / 2;
            if extract(epoch from (v_utc + v_half * interval '1 second')::timestamp - p_label) - v_half = v_ahead then
                v_same := v_half;
            else
                v_until := v_half;
            end if;
        end loop;
        exit when -v_ahead < v_until or v_until > 57600;
        v_from := v_until;
    end loop;
    return v_utc + greatest(v_from, -v_ahead) * interval '1 second';
end $$;
comment on function switchboard.first_instant(timestamp, text) is
'The first instant at which the clock of the zone p_tz shows p_label or something later. Errors: 22023 for an unknown zone.';

create or replace function switchboard.known_zone(p_name text) returns text
language sql stable set search_path = switchboard, pg_temp
as $$
    select z.name from pg_timezone_names z
    where lower(z.name) = lower(p_name) and z.name !~ '^(posix|right)/' and z.name not in ('localtime', 'posixrules', 'Factory')
$$;
comment on function switchboard.known_zone(text) is
'The zone p_name, in any letter case, as PostgreSQL spells it; NULL for what it has no rules of, such as PDT or EST5. Takes some 100 ms: for what is stored, not for what is claimed. Reads pg_timezone_names.';
