"""Texts of sharing: the link, the downloads, the one-file snapshot."""

TEXTS: dict[str, tuple[str, str]] = {
    "title": ("Share", "分享"),
    "link": ("This view, at this instant", "此视图，此时刻"),
    "link_live": ("The same view, live", "同一视图，实时"),
    "download": ("What is on screen", "屏幕上的内容"),
    "csv": ("Values as CSV", "数值 CSV"),
    "parquet": ("Values as Parquet", "数值 Parquet"),
    "html": ("Page as one HTML file", "整页 HTML 单文件"),
    "png": ("Figures as PNG", "图形 PNG"),
    "nothing": ("This page draws no figure to take along.", "此页没有可带走的图形。"),
    "tables": (
        "Tables have their own download and search at their upper right edge.",
        "表格右上角有各自的下载与搜索。",
    ),
    "pools": ("Pools", "池"),
    "findings": ("Noticed", "发现"),
    "col_pool": ("pool", "池"),
    "col_role": ("role", "角色"),
    "col_state": ("state", "状态"),
    "col_used": ("used", "已使用"),
    "col_committed": ("committed", "已承诺"),
    "col_available": ("available", "可供新需求"),
    "col_waiting": ("waiting", "等待中"),
    "col_age": ("age", "数据龄"),
}
